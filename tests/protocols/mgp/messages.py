"""Every message of MGP that a test makes us send or take, checked against the schemas of its section.

The files in `schemas/` were written from the text, one for each section. For each method they give `params` (what is
taken), `sent` (what our own client sends besides) and `result`; for each notification its `params`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from defserve.client.conversation import ClientConversation
from defserve.core.call import Call
from defserve.core.extension import OutgoingMessage
from defserve.core.session import Session
from defserve.protocols.mgp.terms import MGP_NAME, get_call_sections

FILES = sorted((Path(__file__).parent / "schemas").glob("*.json"))
BEGIN = b'"notifications/mgp.'

# A stream has tens of thousands of chunks, and tests time it. So many of each kind are checked in one test.
MOST = 100

_wrong: list[str] = []
_seen: Counter[bytes] = Counter()


@cache
def sections_of_the_text() -> tuple[dict[str, Any], dict[str, Any]]:
    """The definitions and the messages of all sections."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in FILES]
    defs = {name: schema for each in found for name, schema in each["$defs"].items()}
    return defs, {name: schema for each in found for name, schema in each["messages"].items()}


@cache
def validator(method: str, part: str) -> Draft202012Validator | None:
    """The schema of a part of a message, or of a definition if the method is empty."""
    defs, messages = sections_of_the_text()
    schema = messages.get(method, {}).get(part) if method else defs[part]
    return None if schema is None else Draft202012Validator({"$defs": defs, **schema})


def problems(method: str, part: str, value: Any) -> list[str]:
    """What is wrong with a part of a message."""
    found = validator(method, part)
    if found is None:
        return []
    return [f"{method} {part}: {error.json_path}: {error.message[:300]}" for error in found.iter_errors(value)]


def check_reply(call: Call, data: bytes) -> list[str]:
    """What is wrong with our reply to a request of a peer that speaks MGP, or with a request that we took."""
    reply: dict[str, Any] = json.loads(data)
    if "error" in reply:
        return problems("", "coded_error", reply["error"])
    taken = problems(call.method, "params", call.params) if call.method.startswith("mgp/") else []
    # Of a tool's `security` and the members of a result only those are meant that were negotiated.
    is_meant = call.method != "tools/list" or "tool_security" in get_call_sections(call)
    return taken + (problems(call.method, "result", reply["result"]) if is_meant else [])


def check_notification(data: bytes) -> list[str]:
    """What is wrong with a notification of ours."""
    message: dict[str, Any] = json.loads(data)
    known = validator(message["method"], "params") is not None
    return problems(message["method"], "params", message["params"]) if known else [f"{message['method']} has no schema"]


def check_sent(method: str, params: Mapping[str, Any]) -> list[str]:
    """What is wrong with a message of our client."""
    return problems(method, "params", dict(params)) + problems(method, "sent", dict(params))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    _wrong.clear()
    _seen.clear()
    yield
    if item.get_closest_marker("hostile") is not None:
        return
    assert not _wrong, "messages that are not as the text of MGP has them:\n" + "\n".join(dict.fromkeys(_wrong))


def pytest_configure() -> None:
    """Watch both ends. What they send is left as it is."""
    reply, made, request = Session._reply, OutgoingMessage.__init__, ClientConversation.request

    def watched_reply(self: Session, call: Call, data: bytes, code: int | None) -> None:
        # Not by `get_call_sections`: a test lists the files that a call visits.
        if data and call.terms.states.get(MGP_NAME) is not None:
            _wrong.extend(check_reply(call, data))
        reply(self, call, data, code)

    def watched_message(self: OutgoingMessage, data: bytes, *more: Any, **options: Any) -> None:
        if BEGIN in data[:60]:
            _seen[data[:55]] += 1
            if _seen[data[:55]] <= MOST:
                _wrong.extend(check_notification(data))
        made(self, data, *more, **options)

    async def watched_request(self: ClientConversation, method: str, params: Any, *more: Any, **options: Any) -> Any:
        if method.startswith("mgp/"):
            _wrong.extend(check_sent(method, params))
        return await request(self, method, params, *more, **options)

    Session._reply, OutgoingMessage.__init__, ClientConversation.request = (
        watched_reply,
        watched_message,
        watched_request,
    )
