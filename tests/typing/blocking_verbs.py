"""Verbs of the test client have the parameters and results of `Client`'s, for a type checker too."""

from __future__ import annotations

from typing import Any, assert_type

from defserve.client.mcpl.hooks import ReviewedAnswer
from defserve.protocols.mcpl.content import Turn
from defserve.testing import SyncClient


def check_client(client: SyncClient) -> None:
    assert_type(client.tools(), list[dict[str, Any]])
    assert_type(client.read_text("a://b"), str)
    assert_type(client.read_verified({}), dict[str, bytes])
    assert_type(client.prompt("greet", name="Ann"), dict[str, Any])
    assert_type(client.complete("greet", argument="name", value="A"), dict[str, Any])
    assert_type(client.notify("notifications/x"), None)
    client.read_text(1)  # pyright: ignore[reportArgumentType]
    client.complete("greet", value="A")  # pyright: ignore[reportCallIssue]


def check_parts(client: SyncClient, turn: Turn) -> None:
    assert_type(client.mcpl.after_inference(turn, "Hi"), ReviewedAnswer)
    assert_type(client.mcpl.close("c"), bool)
    assert_type(client.start("slow").refresh(), str)
    assert_type(client.render("chart").answer({}), list[dict[str, Any]])
    client.mcpl.close()  # pyright: ignore[reportCallIssue]
