"""What is tried with peers, and what has to be seen. A driver tells what it saw; whether that is right is said here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS = sorted("add bill primes find withdraw count_to cook check_in summarize whoami".split())

BEHIND = sorted("everything fastmcp filesystem git memory official time".split())


@dataclass(frozen=True)
class Feature:
    """`seen` is what the driver has to tell: this value, or a text that contains it."""

    name: str
    how: str
    seen: Any

    def problem(self, saw: Any) -> str | None:
        """Why what a driver saw is wrong; None if it is right."""
        if isinstance(self.seen, str) and isinstance(saw, str):
            right = self.seen in saw
        else:
            right = saw == self.seen
        return None if right else f"saw {saw!r}, not {self.seen!r}"


FEATURES = {
    feature.name: feature
    for feature in (
        Feature("connect", "opens the conversation", True),
        Feature("version", "agrees on the protocol version that was asked for", True),
        Feature("list", "lists the tools", TOOLS),
        Feature("call", "calls `add(2, 3)`", "5"),
        Feature("structured", "gets an object as structured content", {"lines": 1, "total": 5}),
        Feature("structured list", "gets a list as structured content", {"result": [2, 3, 5]}),
        Feature("structured none", "gets `None` from a tool that returns `Model \\| None`", {"result": None}),
        Feature("values", "makes Python values of both, by their schemas", [[2, 3, 5], None]),
        Feature("several servers", "gets the list through its client for several servers", {"result": [2, 3, 5]}),
        Feature("errors", "sees the text of a tool's error", "only 100 are left: ask for less"),
        Feature("progress", "sees all three steps of a call whose result follows at once", [1, 2, 3]),
        Feature("progress ×200", "sees the last step in each of 200 such calls", 200),
        Feature("resources", "reads a resource of a template", "buy milk"),
        Feature("prompts", "gets a prompt", ["user", "assistant"]),
        Feature("elicitation", "answers a form", "Ann stays 2 nights"),
        Feature("sampling", "answers for the model", "short"),
        Feature("resumption", "gets the result although the connection was cut during the call", "served"),
        Feature("auth", "sends a token, and is known by it", "ann"),
        Feature("no token", "is told what is wrong when it sends none", True),
        Feature("health", "says that the server is well", True),
        Feature("behind", "calls a tool of each server that is behind the kernel beside the shop", BEHIND),
        Feature("lists", "lists its tools to the client of defserve", True),
        Feature("answers", "answers a call of the client of defserve", True),
    )
}
