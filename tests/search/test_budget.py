"""What a conversation has loaded stays within its budget, whatever is loaded, called and evicted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import UsageError
from defserve.search import ToolBudget
from defserve.search.entries import LoadedTools, estimate_tokens
from tests.rows import for_each_row

NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), NAMES, st.integers(0, 60)),
        st.tuples(st.just("begin"), NAMES, st.just(0)),
        st.tuples(st.just("end"), NAMES, st.just(0)),
        st.tuples(st.just("evict"), NAMES, st.just(0)),
    )
)


@pytest.mark.req("MGP-16.8")
@given(STEPS, st.integers(0, 100))
def test_never_more_than_the_limit_and_never_without_what_runs(steps: list[tuple[str, str, int]], limit: int):
    loaded, running = LoadedTools(), Counter[str]()
    for step, name, tokens in steps:
        before = set(loaded.names)
        if step == "load":
            fits = loaded.load_tool(name, tokens, limit)
            assert fits == (name in loaded) and (not fits or loaded.names[-1] == name)
        elif step == "begin":
            loaded.begin_call(name)
            running[name] += 1
        elif step == "end" and running[name]:
            loaded.end_call(name)
            running[name] -= 1
        elif step == "evict":
            loaded.evict([name])
        assert loaded.tokens <= limit
        lost = before - set(loaded.names) - ({name} if step == "load" else set())
        assert not any(running[each] for each in lost)


def test_the_least_recently_used_goes_first():
    loaded = LoadedTools()
    for name in ("a", "b", "c", "a"):
        loaded.load_tool(name, 10, 30)
    assert loaded.names == ("b", "c", "a")
    loaded.load_tool("d", 15, 30)
    assert loaded.names == ("a", "d")


def test_a_tool_larger_than_the_limit_is_not_loaded_and_evicts_nobody():
    loaded = LoadedTools()
    loaded.load_tool("a", 10, 30)
    assert not loaded.load_tool("huge", 31, 30)
    assert loaded.names == ("a",)


def test_evicting_gives_back_what_each_one_cost():
    loaded = LoadedTools()
    loaded.load_tool("a", 10, 30)
    loaded.load_tool("b", 5, 30)
    assert loaded.evict(["a", "a", "x"]) == {"a": 10}
    assert loaded.tokens == 5


@for_each_row(
    ("given_fields", "said"),
    [
        ({"max_tokens": -1}, "0 or more"),
        ({"cache_limit": 1.5}, "0 or more"),
        ({"max_tokens": 100}, "add up to 8000"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(given_fields: dict[str, int], said: str):
    with pytest.raises(UsageError, match=said):
        ToolBudget(**given_fields)


def test_tokens_are_a_quarter_of_the_bytes_rounded_up():
    assert [estimate_tokens(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
