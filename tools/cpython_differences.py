"""Tests of CPython's that end otherwise with every frame captured, by the reason why.

`tools/cpython_tests.py` prints the reason beside each of them; tests that are not listed here are
still to be looked at. Names are those of unittest without the leading `test.`, with the wildcards
of `fnmatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True)
class Reason:
    """Why some tests end otherwise."""

    text: str
    tests: tuple[str, ...]
    observes: bool = False
    """Whether the tests ask the interpreter about itself (reference counts, sizes of objects, which
    memory is used again, frames): code that replaces a frame cannot give the same answer."""


REASONS: Final = (
    Reason("counts references or the collector's objects, or measures the memory of an object", (
        "*.test_splittable_popitem", "*.SharedKeyTests.test_*", "*.test_getbuffer",
        "*.ReferencesTestCase.test_ref_reuse", "*.CoExtra.test_*",
        "*.ClassPropertiesAndMethods.test_slots", "*.test_pairwise_result_gc",
    ), observes=True),
    Reason("asks for CPython's version numbers of classes, all of which are in use by then",
           ("*.test_tp_version_tag_unique",), observes=True),
    Reason("asks by `id` whether an iterator fills its last tuple again, which CPython does when "
           "nothing else refers to it", ("*_tuple_reuse",), observes=True),
    Reason("asks by `is` whether equal strings, bytes or numbers are one object", (
        "*OperatorTestCase.test_is", "*OperatorTestCase.test_is_not",
        "test_sort.TestOptimizedCompares.test_unsafe_*",
    ), observes=True),
    Reason("replaces what a function does through CPython's C API",
           ("*.TestPEP590.test_setvectorcall*",), observes=True),
    Reason("walks frame objects: a replaced function has one frame where the program had several",
           ("*.ExceptionTests.testSettingException",), observes=True),
    Reason("looks for the variables of frames in a traceback, whose entries have names and lines "
           "only (nothing is kept alive by them)", (
        "*.ExceptionTests.test_memory_error_cleanup", "*.test_recursion_error_cleanup",
    ), observes=True),
    Reason("wants an object or class freed at once, which guards, or the caller of a continuation, "
           "still hold", (
        "*.test_free_after_iterating", "*.test_lru_cache_weakrefable", "*.test_remove_subclass",
        "*.test_reference_loop", "*.test_struct_reference_cycle_cleaned_up",
        "*.StructTest.test__struct_reference_cycle_cleaned_up", "*.test_cycle_collection",
        "*.FinalizeTestCase.test_all_freed", "*.WeakMethodTestCase.test_no_cycles",
        "*.MappingTestCase.test_weak_keyed_len_cycles",
    )),
    Reason("changes a list while it is sorted, the effect of which Python leaves open",
           ("test_sort.TestBugs.test_undetected_mutation",)),
    Reason("recurses without end: replacements need less of the stack, and Python's limit is "
           "higher while something is captured", (
        "*.test_isinstance_recursion_limit", "*.test_subclass_recursion_limit",
    )),
    Reason("uses a second copy of a library (`import_fresh_module`), for which there are no rules",
           ("*.TestPartialC.test_nested_optimization",)),
    Reason("is expected to fail because of an error of CPython's, which does not show",
           ("*.test_restored_object_new",)),
    Reason("expects a warning of `re.compile`, which keeps what it has compiled: the first of "
           "several attempts to capture the frame has heard it",
           ("*.ReTests.test_symbolic_*_errors",)),
    Reason("changes what a match still reads, which is a copy after a graph break",
           ("*.ReTests.test_bug_29444",)),
    Reason("measures times, on a machine that does other things",
           ("*.test_search_anchor_at_beginning", "test_sched.TestCase.test_enter")),
    Reason("has `__class__` as a slot", ("test_builtin.BuiltinTest.test_dir",)),
    Reason("expects a warning of a coroutine that is never awaited",
           ("*.CoroutineTest.test_bpo_45813_1",)),
    Reason("reads the cache of a logger, which capture does not fill at the same time",
           ("*.LoggerTest.test_caching",)),
)


def reason_of(test: str) -> Reason | None:
    """Why the test ends otherwise, if that is known."""
    name = test.removeprefix("test.")
    return next((reason for reason in REASONS
                 if any(fnmatchcase(name, pattern) for pattern in reason.tests)), None)
