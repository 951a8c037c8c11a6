"""Importing this module registers the rules and value families of every subject.

Place in the pipeline: `weft.capture` imports it once, before the first capture. What a subject
registers at import stands in tables (`weft.registrar`), so the order means nothing.
"""
# ruff: noqa: F401  (imported for what they register)

from importlib.util import find_spec

import weft.capture.library.autograd.function_rules
import weft.capture.library.autograd.registered_operators
import weft.capture.library.autograd.rules
import weft.capture.library.autograd.saved_tensor_hooks
import weft.capture.library.autograd.tensor_hooks
import weft.capture.library.classes.class_checks
import weft.capture.library.classes.immutable_subclasses
import weft.capture.library.containers.constructors
import weft.capture.library.containers.deques
import weft.capture.library.containers.itertools_rules
import weft.capture.library.containers.namespaces
import weft.capture.library.containers.outside_views
import weft.capture.library.copying.rules
import weft.capture.library.distributed.distributed_tensors
import weft.capture.library.distributed.rules
import weft.capture.library.exceptions.methods
import weft.capture.library.functions.builtin_rules
import weft.capture.library.functions.frames
import weft.capture.library.functions.getters
import weft.capture.library.higher_order.functorch_rules
import weft.capture.library.higher_order.rules
import weft.capture.library.markers.rules
import weft.capture.library.modules.module_hooks
import weft.capture.library.numbers.numbers_from_tensors
import weft.capture.library.optimizers.rules
import weft.capture.library.random.generators
import weft.capture.library.standard.immutable_objects
import weft.capture.library.standard.logging_rules
import weft.capture.library.standard.polyfill_rules
import weft.capture.library.standard.remade
import weft.capture.library.standard.rules
import weft.capture.library.standard.warnings_rules
import weft.capture.library.tensors.tensor_index
import weft.capture.library.tensors.tensor_subclasses
import weft.capture.library.tensors.tensor_wrappers
import weft.capture.library.texts.text_formats
import weft.capture.library.torch_functions.batch_norm_rules
import weft.capture.library.torch_functions.comparison_rules
import weft.capture.library.torch_functions.kernel_promises
import weft.capture.library.torch_functions.library_flags
import weft.capture.library.torch_functions.printed_output
import weft.capture.library.torch_functions.pytree_rules
import weft.capture.library.torch_functions.recurrent_rules
import weft.capture.library.torch_functions.rules
import weft.capture.library.torch_functions.size_rules

if find_spec("numpy") is not None:
    import weft.capture.library.numpy.rules
