"""`frame`: the extension under test; loaded alone where torch is absent (plain interpreters).

WEFT_FRAME_LIBRARY names a file to load instead of the one in src/weft.
"""

import importlib.machinery
import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType

HAS_TORCH = importlib.util.find_spec("torch") is not None


def _load_alone() -> ModuleType:
    folder = Path(__file__).resolve().parents[2] / "src" / "weft"
    built = str(folder / f"_frame{sysconfig.get_config_var('EXT_SUFFIX')}")
    path = os.environ.get("WEFT_FRAME_LIBRARY", built)
    loader = importlib.machinery.ExtensionFileLoader("weft._frame", path)
    spec = importlib.util.spec_from_loader("weft._frame", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


if HAS_TORCH and "WEFT_FRAME_LIBRARY" not in os.environ:
    from weft import _frame as frame
else:
    frame = _load_alone()
