"""Names outside: prefixed, chosen, renamed, never too long; and URIs, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import UsageError
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.proxying.mounted import MAX_NAME_LENGTH, ToolChoice, find_name_problem, make_outer_name
from tests.rows import for_each_row

PREFIXES = st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,57}", fullmatch=True)


@given(PREFIXES, NAMES)
def test_no_name_outside_is_too_long_and_it_is_always_the_same(prefix: str, name: str) -> None:
    outer = make_outer_name(MountPrefix(prefix), name)
    assert len(outer) <= MAX_NAME_LENGTH
    assert outer == make_outer_name(MountPrefix(prefix), name)
    assert outer.endswith(f"_{name}")


@given(PREFIXES, PREFIXES)
def test_shortened_names_of_two_prefixes_differ(one: str, other: str) -> None:
    name = "n" * 50
    assert (make_outer_name(MountPrefix(one), name) == make_outer_name(MountPrefix(other), name)) == (one == other)


@given(PREFIXES, st.text(min_size=1))
def test_a_uri_comes_back_as_it_was(prefix: str, rest: str) -> None:
    for uri in (f"note://{rest}", f"note:{rest}", f"file:///{rest}"):
        assert MountPrefix(prefix).strip_uri(MountPrefix(prefix).prefix_uri(uri)) == uri


def test_a_uri_of_another_mount_is_not_ours() -> None:
    assert MountPrefix("a").strip_uri("note://b/x") is None
    assert MountPrefix("a").strip_uri("note://ab/x") is None
    assert MountPrefix("a").strip_uri("b+mail:x") is None
    assert MountPrefix(None).strip_uri("note://b/x") == "note://b/x"


def test_tools_are_chosen_and_renamed() -> None:
    choice = ToolChoice.from_option({"allow": ["read_*", "list"], "deny": ["*_secret"], "rename": {"list": "ls"}})
    assert [choice.is_offered(name) for name in ("read_file", "read_secret", "list", "write")] == [
        True,
        False,
        True,
        False,
    ]
    assert (choice.get_offered_name("list"), choice.get_offered_name("read_file")) == ("ls", "read_file")
    assert ToolChoice.from_option(["add"]).is_offered("add")
    assert not ToolChoice.from_option(["add"]).is_offered("sub")
    assert ToolChoice.from_option(None).is_offered("anything")
    with pytest.raises(UsageError, match="alow"):
        ToolChoice.from_option({"alow": []})


@for_each_row("name", [None, "", 7, "a\nb", "x" * 300, "a\u202eb"])
def test_names_that_nobody_can_use_are_left_out(name: object) -> None:
    assert find_name_problem(name) is not None
