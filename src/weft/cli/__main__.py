"""``python -m weft.cli``: the command line without the console script."""

from weft.cli import main

main()
