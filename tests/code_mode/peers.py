"""A peer that runs code, and what it gets: the value, or the text of the failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.raw import STATELESS, Json, Raw

ASKS: Json = {"elicitation": {}}
YES: Json = {"action": "accept", "content": {"value": True}}
NO: Json = {"action": "decline"}

Answering = Callable[[str], Json]


async def run(peer: Raw, code: str, answering: Answering | None = None) -> Json:
    """The result of `run_code`, or the error. Questions are answered by their messages, in either era."""
    params: Json = {"name": "run_code", "arguments": {"code": code}}
    if peer.version != STATELESS:
        return await _in_place(peer, params, answering)
    reply = await peer.ask("tools/call", params)
    while answering is not None and reply.get("result", {}).get("resultType") == "input_required":
        reply = await peer.ask("tools/call", {**params, **answers(reply["result"], answering)})
    return reply.get("result") or reply["error"]


def answers(asked: Json, answering: Answering) -> Json:
    """What a repeated request brings along."""
    given = {key: answering(request["params"]["message"]) for key, request in asked["inputRequests"].items()}
    return {"inputResponses": given, "requestState": asked["requestState"]}


async def _in_place(peer: Raw, params: Json, answering: Answering | None) -> Json:
    id = await peer.begin("tools/call", params)
    while True:
        message = await peer.hear()
        if message.get("method") == "elicitation/create" and answering is not None:
            answer = answering(message["params"]["message"])
            await peer.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        elif message.get("id") == id and "method" not in message:
            return message.get("result") or message["error"]


def value(result: Json) -> Any:
    """What the code gave."""
    assert not result.get("isError"), result
    return result["structuredContent"]["result"]


def failure(result: Json) -> str:
    """What the model reads of code that failed."""
    assert result.get("isError"), result
    return result["content"][0]["text"]
