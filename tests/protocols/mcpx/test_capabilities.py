"""The matcher against the examples of the spec, and against a plain regular expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.protocols.mcpx.envelope import (
    CAPABILITY_PROFILES,
    MAX_KIND_LENGTH,
    TopicCapabilities,
    is_kind_covered,
    matches_strictly,
)
from tests.effort import cpu_within
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPX-4.1w")

CALL = "mcp/request:tools/call"
READ = "mcp/request:resources/read"

COVERED = [
    *((CALL, pattern) for pattern in ("mcp/*", "mcp/request:*", "mcp/request:tools/*", CALL, "*")),
    *((f"{CALL}:rm", pattern) for pattern in ("mcp/*", "mcp/request:tools/*", CALL, f"{CALL}:rm", f"{CALL}:*")),
    *(("mcp/response:tools/call", pattern) for pattern in ("mcp/*", "mcp/response:*", "mcp/response:tools/*")),
    ("mcp/request:tools/list", "mcp/request:*/list"),
    ("mcp/request:resources/templates/list", "mcp/request:*/list"),
    (f"{READ}:file:///a:b", f"{READ}:file:///*"),
    (f"{READ}:file:///a:b", "mcp/*:*:file:*"),
    ("chat", "chat"),
]
NOT_COVERED = [
    (CALL, "mcp/proposal:*"),
    (CALL, f"{CALL}:rm"),
    (f"{CALL}:rm", f"{CALL}:r"),
    (f"{CALL}:a:b", f"{CALL}:a"),
    (f"{CALL}:x/list", "mcp/request:*/list"),
    (f"{CALL}s", CALL),
    ("mcp/request:tools", "mcp/request:tools/*"),
    ("chat", "chatter"),
    ("chatter", "chat"),
    ("", "chat"),
]


@for_each_row(("kind", "capability"), COVERED)
def test_the_capability_covers_the_kind(kind: str, capability: str):
    assert is_kind_covered(kind, capability) and TopicCapabilities([capability]).allows_kind(kind)


@for_each_row(("kind", "capability"), NOT_COVERED)
def test_the_capability_does_not_cover_the_kind(kind: str, capability: str):
    assert not is_kind_covered(kind, capability) and not TopicCapabilities([capability]).allows_kind(kind)


def test_the_reference_knows_only_prefixes():
    assert matches_strictly(f"{CALL}:rm", "mcp/request:tools/*")
    assert not matches_strictly(f"{CALL}:rm", CALL)
    assert not matches_strictly("mcp/request:tools/list", "mcp/request:*/list")
    assert not TopicCapabilities(["mcp/request:*/list"], strict=True).allows_kind("mcp/request:tools/list")


few = st.text("ab:/", max_size=12)
pattern = st.text("ab:/*", max_size=12)


@given(kind=few, capability=pattern)
def test_a_star_is_any_run(kind: str, capability: str):
    held = kind if capability.count(":") >= 2 else ":".join(kind.split(":", 2)[:2])
    regex = re.compile(".*".join(map(re.escape, capability.split("*"))), re.DOTALL)
    assert is_kind_covered(kind, capability) == (regex.fullmatch(held) is not None)


@given(kind=few, capability=st.text("ab:/", min_size=1, max_size=12))
def test_both_rules_agree_where_only_the_end_is_a_star_and_a_context_is_named(kind: str, capability: str):
    capability = f"a:b:{capability}*"
    assert is_kind_covered(kind, capability) == matches_strictly(kind, capability)


@given(base=st.sampled_from(["a", "b/c"]), method=st.text("ab/", min_size=1), context=few, capability=pattern)
def test_a_context_never_lets_in_what_its_method_is_not(base: str, method: str, context: str, capability: str):
    if capability.count(":") < 2:
        assert is_kind_covered(f"{base}:{method}:{context}", capability) == is_kind_covered(
            f"{base}:{method}", capability
        )


def test_many_stars_take_no_longer_than_the_text():
    kind, hostile = "a" * 100_000 + "b", "*a" * 2_000 + "*c"
    assert not is_kind_covered(kind, hostile) and not is_kind_covered(kind, hostile + "*b")
    assert cpu_within(0.5, lambda: is_kind_covered(kind, hostile)) and cpu_within(
        0.5, lambda: is_kind_covered(kind, hostile + "*b")
    )


@pytest.mark.req("MCPX-4.1s")
@for_each_row("kind", ["system/welcome", "system", "presence"])
def test_no_capability_covers_what_only_a_gateway_may_say(kind: str):
    assert not TopicCapabilities(["*", "system/*", kind]).allows_kind(kind)


@pytest.mark.req("MCPX-4.1p")
@for_each_row(
    ("profile", "may", "may_not"),
    [
        ("full", [f"{CALL}:rm", "mcp/proposal:tools/call", "chat"], ["system/error"]),
        ("proposal-only", ["mcp/proposal:tools/call:rm", "mcp/response:x", "chat"], [CALL, "mcp/request:tools/list"]),
        ("response-only", ["mcp/response:tools/call:rm", "chat"], [CALL, "mcp/proposal:tools/call"]),
        ("read-only", [f"{READ}:a://b", "mcp/request:prompts/list", "chat"], [CALL, "mcp/proposal:tools/call"]),
        ("tool-only", [CALL, "mcp/request:tools/list", "mcp/response:tools/call"], [READ, "mcp/response:x"]),
    ],
)
def test_profiles_allow_what_the_spec_says_of_them(profile: str, may: list[str], may_not: list[str]):
    capabilities = TopicCapabilities(CAPABILITY_PROFILES[profile])
    assert [kind for kind in may if not capabilities.allows_kind(kind)] == []
    assert [kind for kind in may_not if capabilities.allows_kind(kind)] == []


def test_capabilities_grow_and_shrink_and_forget_what_they_knew():
    before = TopicCapabilities(["mcp/proposal:*", "chat"], strict=True)
    assert not before.allows_kind(CALL)
    after = before.with_changes(add=["mcp/request:tools/*"], remove=["chat"])
    assert after.patterns == ("mcp/proposal:*", "mcp/request:tools/*")
    assert after.allows_kind(CALL) and not after.allows_kind("chat") and not before.allows_kind(CALL)


def test_a_flood_of_kinds_is_not_remembered():
    capabilities = TopicCapabilities(["a*"])
    assert all(capabilities.allows_kind(f"a{number}") for number in range(2_000))
    assert capabilities.allows_kind("a1") and not capabilities.allows_kind("b1")


@for_each_row("patterns", ["chat", [""], [None]])
def test_what_is_no_list_of_patterns_is_refused(patterns: object):
    with pytest.raises(UsageError):
        TopicCapabilities(patterns)  # pyright: ignore[reportArgumentType]


def test_a_kind_that_is_long_is_judged_and_not_remembered():
    allowed = TopicCapabilities(["chat:*"])
    assert allowed.allows_kind("chat:" + "x" * MAX_KIND_LENGTH) and not allowed.allows_kind(
        "other:" + "x" * MAX_KIND_LENGTH
    )
    assert allowed._known == {}
