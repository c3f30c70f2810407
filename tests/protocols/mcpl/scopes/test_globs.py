from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcpl.scopes import Glob
from tests.effort import cpu_within
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPL-7.2")


def oracle(pattern: str, label: str, fresh: bool = True) -> bool:
    """The rules as one would say them. `fresh`: a segment of the pattern begins here."""
    if not pattern:
        return not label
    stars = len(pattern) - len(pattern.lstrip("*"))
    rest = pattern[stars:]
    if stars > 1:
        if fresh and rest.startswith("/") and oracle(rest[1:], label, True):
            return True
        return any(oracle(rest, label[at:], False) for at in range(len(label) + 1))
    if stars == 1:
        end = label.find("/") if "/" in label else len(label)
        return any(oracle(rest, label[at:], False) for at in range(end + 1))
    head, tail = pattern[0], pattern[1:]
    if not label or (head == "?" and label[0] == "/") or (head not in ("?", label[0])):
        return False
    return oracle(tail, label[1:], head == "/")


@for_each_row(
    ("pattern", "covers", "spares"),
    [
        ("/project/**", ["/project/a", "/project/a/b.ts"], ["/project", "/projects/a", "/etc/project/a"]),
        ("**/.env", [".env", "/.env", "/project/.env", "a/b/.env"], ["/project/x.env", "/.env/x", "x.env"]),
        ("**/secrets/**", ["/secrets/a", "/project/secrets/a/b", "secrets/x"], ["/project/secrets"]),
        ("#dev-*", ["#dev-", "#dev-tools"], ["#dev", "#general", "#dev-a/b"]),
        ("#general", ["#general"], ["#General", "#general2", ""]),
        ("discord:acme/*", ["discord:acme/#general"], ["discord:acme/a/b", "discord:other/a"]),
        ("*", ["anything", ""], ["a/b"]),
        ("**", ["anything", "a/b", ""], []),
        ("/a/**/b", ["/a/b", "/a/x/b", "/a/x/y/b"], ["/ab", "/a/xb"]),
        ("/?.txt", ["/a.txt"], ["/.txt", "//.txt", "/ab.txt"]),
        ("[a-z]+(x)", ["[a-z]+(x)"], ["b"]),
    ],
)
def test_patterns_cover_what_they_say(pattern: str, covers: list[str], spares: list[str]):
    assert [label for label in covers if not Glob(pattern).is_match(label)] == []
    assert [label for label in spares if Glob(pattern).is_match(label)] == []


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_any_pattern_means_what_the_rules_say(pattern: str, label: str):
    assert Glob(pattern).is_match(label) is oracle(pattern, label)


@for_each_row("pattern", ["*a" * 500 + "b", "**a" * 300 + "b", "**/" * 340 + "b", "?" * 500 + "**b" * 170])
def test_no_pattern_stalls_the_server(pattern: str):
    label = "a" * 1_024 + "/c"
    assert not Glob(pattern).is_match(label)
    assert cpu_within(1, lambda: Glob(pattern).is_match(label))
