"""Globs over labels. The time grows with label and pattern alone: no pattern of a host can stall a server.

`*` matches any characters except `/`, `**` any at all, `?` one that is not `/`. At the start of a segment, `**/` also
matches nothing, so that `**/.env` covers `.env`. Every other character matches itself.
"""

from __future__ import annotations

import re

from defserve.base.caches import remember_short

# Several `**/` in a row mean the same as one.
TOKENS = re.compile(r"(?:^|(?<=/))(?:\*\*+/)+|\*+|[\s\S]")


class Glob:
    """One pattern as an automaton whose states are the bits of a number: bit `n` is "n tokens have been matched"."""

    __slots__ = ("_literals", "_one", "_within", "_across", "_gates", "_end")

    def __init__(self, pattern: str) -> None:
        self._literals: dict[str, int] = {}
        # The states of `?`, of `*`, of `**`, and those before a `**/` that may be left out.
        self._one = self._within = self._across = self._gates = 0
        bit = 1
        for token in TOKENS.findall(pattern):
            if token.endswith("*/"):
                self._gates |= bit
                self._across |= bit << 1
                self._literals["/"] = self._literals.get("/", 0) | bit << 2
                bit <<= 2
            elif token[0] == "*":
                self._within |= bit if token == "*" else 0
                self._across |= bit if token != "*" else 0
            elif token == "?":
                self._one |= bit
            else:
                self._literals[token] = self._literals.get(token, 0) | bit
            bit <<= 1
        self._end = bit

    def matches(self, label: str) -> bool:
        """Whether the pattern covers the whole label."""
        states = self._closed(1)
        for character in label:
            apart = character == "/"
            moving = self._literals.get(character, 0) | (0 if apart else self._one)
            staying = self._across | (0 if apart else self._within)
            states = self._closed((states & moving) << 1 | states & staying)
            if not states:
                return False
        return bool(states & self._end)

    def _closed(self, states: int) -> int:
        """The states, and those that they reach without a character."""
        while True:
            gates = states & self._gates
            more = states | (states & (self._within | self._across)) << 1 | gates << 1 | gates << 3
            if more == states:
                return states
            states = more


@remember_short(1_024)
def glob(pattern: str) -> Glob:
    """The automaton of a pattern, cached."""
    return Glob(pattern)
