"""A stored entry is used where the program is the same, and never where it is another one."""

import pytest

from tools import fuzz_store

NOT_STORABLE = {"same_hook_code"}
"""Controls that say why they are not kept."""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    chosen = list(fuzz_store.cases(short=True))
    first, second = fuzz_store.compare(tmp_path_factory.mktemp("store"), chosen)
    return chosen, first, second


def test_no_result_of_another_version_of_the_program(two_processes):
    _, first, second = two_processes
    assert fuzz_store.stale(first) == []
    assert fuzz_store.stale(second) == []


def test_unchanged_programs_are_not_captured_again(two_processes):
    chosen, first, second = two_processes
    captured = [case.name for case in chosen if not case.changes and (
        second[case.name]["captured"] or not second[case.name]["loaded"])]
    assert [name for name in captured if not name.startswith(tuple(NOT_STORABLE))] == []


def test_what_is_not_kept_says_why(two_processes):
    chosen, first, _ = two_processes
    for case in chosen:
        assert first[case.name]["stored"] or first[case.name]["reasons"], case.name
