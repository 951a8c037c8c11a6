from weft import errors as errors
from weft.api import (
    compile as compile,
)
from weft.api import (
    compile_inplace as compile_inplace,
)
from weft.api import (
    explain as explain,
)
from weft.api import (
    optimize as optimize,
)
from weft.api import (
    reset as reset,
)
from weft.api import (
    stats as stats,
)
from weft.api import (
    uncompile_inplace as uncompile_inplace,
)
from weft.backends import list_backends as list_backends
from weft.backends import register_backend as register_backend
from weft.backends.inductor import compile_fx as compile_fx
from weft.benchmarking import benchmark as benchmark
from weft.config import config as config
from weft.diagnostics.logs import set_logs as set_logs
from weft.dims import Dim as Dim
from weft.installation import install as install
from weft.installation import uninstall as uninstall
from weft.markers import (
    allow_in_graph as allow_in_graph,
)
from weft.markers import (
    disable as disable,
)
from weft.markers import (
    is_compiling as is_compiling,
)
from weft.markers import (
    mark_dynamic as mark_dynamic,
)
from weft.markers import (
    mark_static as mark_static,
)
from weft.markers import (
    mark_unbacked as mark_unbacked,
)
from weft.passes import register_pass as register_pass
from weft.passes import register_pattern as register_pattern
from weft.passes import unregister_pass as unregister_pass
from weft.passes import unregister_pattern as unregister_pattern
from weft.stances import error_on_graph_break as error_on_graph_break
from weft.stances import set_stance as set_stance
from weft.version import __version__ as __version__
