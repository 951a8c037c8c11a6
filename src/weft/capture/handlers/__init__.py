"""Rules for single functions: what a call of this very object does.

Place in the pipeline: above `values/`; the values of C functions, classes and Python functions look
for a rule before they try anything else. There is one file for each library; importing this package
registers them all.
"""

from importlib.util import find_spec

from weft.capture.handlers import (  # noqa: F401  (registers the rules)
    autograd_functions,
    autograd_library,
    batch_norm,
    builtin_functions,
    class_checks,
    constructors,
    copying,
    data_numbers,
    distributed_library,
    exception_methods,
    functorch_library,
    higher_order,
    immutable_objects,
    itertools_library,
    kernel_promises,
    library_flags,
    library_polyfills,
    logging_library,
    marked_functions,
    module_hooks,
    optimizer_library,
    printed_output,
    pytree_library,
    recurrent_layers,
    registered_operators,
    saved_tensor_hooks,
    size_polyfills,
    standard_library,
    tensor_hooks,
    tensor_index,
    text_formats,
    torch_library,
    warnings_library,
)
from weft.capture.values.containers import deques, namespaces  # noqa: F401
from weft.capture.values.objects import getters, immutable_subclasses, remade  # noqa: F401
from weft.capture.values.tensors import random_generators, tensor_subclasses, tensor_wrappers  # noqa: F401

if find_spec("numpy") is not None:
    import weft.capture.handlers.numpy_library  # noqa: F401
