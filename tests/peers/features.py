"""What is tried with peers, and what has to be seen. A driver tells what it saw; whether that is right is said here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOOLS = """
    add bill primes find withdraw count_to cook check_in summarize whoami clean places wait gave_up invite decorate
    hours weigh
"""

HOURS = {"opens": "08:30:00", "last_order": "2026-11-17T21:45:00", "break_length": "PT45M"}
EACH = object()
"""All servers of the tour, by their names."""


@dataclass(frozen=True)
class Feature:
    """`seen` is what the driver has to tell: this value, a text that contains it, or `EACH`."""

    name: str
    how: str
    seen: Any

    def problem(self, saw: Any, servers: Sequence[str] = ()) -> str | None:
        """Why what a driver saw is wrong; None if it is right. `servers` are those that have this feature."""
        wanted = list(servers) if self.seen is EACH else self.seen
        if isinstance(wanted, str) and isinstance(saw, str):
            right = wanted in saw
        else:
            right = saw == wanted
        return None if right else f"saw {saw!r}, not {wanted!r}"


FEATURES = {
    feature.name: feature
    for feature in (
        Feature("connect", "connects", True),
        Feature("version", "agrees on the protocol version that was asked for", True),
        Feature("list", "lists the tools", sorted(TOOLS.split())),
        Feature("call", "calls `add(2, 3)`", "5"),
        Feature("no parameters", "calls a tool that has no parameters", "done"),
        Feature("recursive", "calls a tool whose argument is a recursive model", "5 crates of 15 kg"),
        Feature("structured", "gets an object as structured content", {"lines": 1, "total": 5}),
        Feature("structured list", "gets a list as structured content", {"result": [2, 3, 5]}),
        Feature("structured none", "gets `None` from a tool that returns `Model \\| None`", {"result": None}),
        Feature("formats", "accepts times without a zone, and durations, by their schema", HOURS),
        Feature("values", "makes Python values of both, by their schemas", [[2, 3, 5], None]),
        Feature("several servers", "gets the list through its client for several servers", {"result": [2, 3, 5]}),
        Feature("errors", "sees the text of a tool's error", "only 100 are left: ask for less"),
        Feature("progress", "sees all three steps of a call whose result follows at once", [1, 2, 3]),
        Feature("progress ×200", "sees the last step in each of 200 such calls", 200),
        Feature("resources", "reads a resource of a template", "buy milk"),
        Feature("prompts", "gets a prompt", ["user", "assistant"]),
        Feature("elicitation", "answers a form", "Ann stays 2 nights"),
        Feature("sampling", "answers for the model", "short"),
        Feature("resumption", "gets the result after the connection was cut during the call", "served"),
        Feature("auth", "sends a token and is authenticated", "ann"),
        Feature("no token", "gets an explanation when it sends no token", True),
        Feature("sign in, issuer", "signs in at the identity provider of a server with `OIDC`", "alice"),
        Feature("sign in, proxy", "the same for a server with `OAuthProxy`", "alice"),
        Feature("client secret", "comes in as itself at `OAuthProxy`, with its secret", "|job"),
        Feature("client signature", "the same with a signature of its own (`private_key_jwt`)", "|agent"),
        Feature("identity assertion", "comes in for a person of a company, by an ID-JAG of its provider", "|ann"),
        Feature("health", "reports that the server is healthy", True),
        Feature("pages", "gets the whole list of tools, page by page", True),
        Feature("templates", "finds a template in the list, and reads a resource of it", EACH),
        Feature("completion", "gets completions for an argument", EACH),
        Feature("subscriptions", "is notified when a subscribed resource changes", EACH),
        Feature("list changed", "is notified when a list changes, and reads the new list", EACH),
        Feature("logs", "gets a call's log messages", EACH),
        Feature("roots", "is asked for its roots", EACH),
        Feature("cancellation", "cancels a call, and it stops on the server", EACH),
        Feature("each call", "calls a tool of each server behind the kernel", EACH),
        Feature("each resource", "reads a resource of each that has some", EACH),
        Feature("each prompt", "gets a prompt of each that has some", EACH),
        Feature("each progress", "sees the progress of a call of each that reports it", EACH),
        Feature("each elicitation", "answers a form of each that has one", EACH),
        Feature("each sampling", "answers for the model, to each that asks", EACH),
        Feature("lists", "lists its tools to defserve's client", True),
        Feature("lists all", "`defserve list` shows it, whatever of MCP it lacks", True),
        Feature("answers", "answers a call of defserve's client", True),
    )
}
