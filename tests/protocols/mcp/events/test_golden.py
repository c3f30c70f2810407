"""Every method and every error of both dialects, compared with the messages in `golden`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.mcp.events.golden_messages import (
    DIALECTS,
    FORBIDDEN,
    SCENES,
    load_golden,
    record_forbidden,
    record_scene,
)

pytestmark = pytest.mark.anyio

METHODS = ("events/list", "events/poll", "events/stream", "events/subscribe", "events/unsubscribe")
NOTIFICATIONS = ("active", "event", "error", "heartbeat", "terminated", "list_changed")

# The rows of the draft's table, as they stand there: name, the SEP's number, the sketch's, what its data has.
ERRORS: list[tuple[str, int, int, str, set[str]]] = [
    ("InvalidParams", -32602, -32602, "", set()),
    ("NotFound", -32023, -32011, "kind", {"event", "subscription"}),
    ("Forbidden", -32024, -32012, "", set()),
    ("ResourceExhausted", -32025, -32013, "limit", {"streams", "webhooks"}),
    ("Unsupported", -32026, -32014, "feature", {"delivery"}),
    (
        "CallbackEndpointError",
        -32027,
        -32015,
        "reason",
        {"connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"},
    ),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("title", SCENES)
async def test_a_scene_is_said_as_it_was(title: str, dialect: str):
    assert await record_scene(title, dialect) == load_golden(dialect)[title]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_who_may_not_subscribe_is_told_so(dialect: str):
    assert await record_forbidden(dialect) == load_golden(dialect)[FORBIDDEN]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_files_have_every_method_every_notification_and_every_row_of_the_error_table(dialect: str):
    messages = [message for scene in load_golden(dialect).values() for _, message in scene]
    said = {message.get("method") for message in messages}
    assert said >= {*METHODS, *(f"notifications/events/{name}" for name in NOTIFICATIONS)}
    errors = [message["error"] for message in messages if "error" in message]
    assert -32601 in {error["code"] for error in errors}
    for name, sep, sketch, member, values in ERRORS:
        found = [error for error in errors if error["code"] == (sep if dialect == "sep" else sketch)]
        assert found, name
        # An idempotent unsubscribe of the sketch has no subscription that is not found.
        wanted = values - ({"subscription"} if dialect == "sketch" else set())
        assert {_member(error, member) for error in found if _member(error, member)} >= wanted, name


def _member(error: Any, name: str) -> Any:
    return error.get("data", {}).get(name)


def test_the_dialects_differ_in_numbers_and_in_an_idempotent_unsubscribe_only():
    sep, sketch = load_golden("sep"), load_golden("sketch")
    numbers = {row[1]: row[2] for row in ERRORS}
    different = [title for title in sep if _renumber(sep[title], numbers) != sketch[title]]
    assert different == ["webhook"]
    assert _renumber(sep["webhook"], numbers)[:-1] == sketch["webhook"][:-1]


def _renumber(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, dict):
        return {key: _renumber(each, numbers) for key, each in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_renumber(each, numbers) for each in value]  # pyright: ignore
    return numbers.get(value, value) if isinstance(value, int) else value
