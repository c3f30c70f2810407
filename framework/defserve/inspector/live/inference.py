"""Inference that a server asks for (MCPL §11), put to the person as a request to sample a model is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from defserve.host.mcpl.inference.routing import InferenceRequest, Model
from defserve.inspector.live.feed import LiveFeed
from defserve.inspector.protocol import Json
from defserve.protocols.mcpl.content import blocks, read
from defserve.wire.jsonvalue import is_array, is_object

Sample: TypeAlias = Callable[[Json], Awaitable[Any]]
"""Answers the params of `sampling/createMessage`: with a text, or with the whole result."""

TOKENS: Final = 1_000
"""How long an answer may be if the server does not say."""


def asked_person(feed: LiveFeed, era: Callable[[], str], sample: Sample) -> Model:
    """A model that is the person, or the script that answers for it. The feed tells of every request."""

    async def infer(request: InferenceRequest) -> str:
        params = as_sampling(request)
        with feed.inference(era(), request.inference_id, request.feature_set, newest(params)):
            return written(await sample(params))

    return infer


def as_sampling(request: InferenceRequest) -> Json:
    """The request in the words of MCP's sampling."""
    said = [(str(message["role"]), blocks(read(message["content"]))) for message in request.messages]
    system = [_text(content) for role, content in said if role == "system"]
    params: Json = {
        "messages": [{"role": role, "content": content} for role, content in said if role != "system"],
        "maxTokens": request.max_tokens or TOKENS,
    }
    if system:
        params["systemPrompt"] = "\n\n".join(system)
    if request.temperature is not None:
        params["temperature"] = request.temperature
    return params


def newest(params: Json) -> str:
    """The text of the last message."""
    return _text(params["messages"][-1]["content"]) if params["messages"] else params.get("systemPrompt", "")


def written(answer: Any) -> str:
    """The text of an answer to sampling."""
    content = answer.get("content") if is_object(answer) else answer
    return content if isinstance(content, str) else _text(content if is_array(content) else [content])


def _text(content: Sequence[Any]) -> str:
    return "\n".join(str(block.get("text", "")) for block in content if is_object(block))
