"""The four ways in which endpoints are asked: how a request is written, and how an answer is read.

    chat        POST /v1/chat/completions   OpenAI, vLLM, llama.cpp, LM Studio and many others
    responses   POST /v1/responses          OpenAI
    anthropic   POST /v1/messages           Anthropic
    ollama      POST /api/chat              Ollama: its `/v1` cuts prompts silently

A conversation is kept in our own words, so one suite is the same for all. Nothing that was not asked for is sent: no
temperature, no tool choice. What an endpoint sent to be sent back (reasoning, ids) goes back unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias
from unicodedata import normalize

from defserve.base.redaction import REDACTION_MASK, redact_text
from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.tooling.evals.judging import AnswerStop, ModelAnswer, ModelCall, TokenUsage
from defserve.tooling.vendor_shapes import shape_tools

Json: TypeAlias = dict[str, Any]

MAX_TEXT_LENGTH: Final = 100_000
MAX_CALLS: Final = 128
"""Calls of one answer that are read."""
ANTHROPIC_VERSION: Final = "2023-06-01"
ANTHROPIC_MAX_TOKENS: Final = 4_096
OLLAMA_CONTEXT: Final = 16_384
"""Tokens. Ollama's own default is 4,096 on small machines, and what is too long is cut at the front: the tools."""


class ToolReply(NamedTuple):
    """What a call is answered with."""

    call: ModelCall
    text: str
    is_error: bool = False


class PersonMessage(NamedTuple):
    text: str


class ModelMessage(NamedTuple):
    """An answer before this one: of the model, or written in the case."""

    answer: ModelAnswer


class ToolRepliesMessage(NamedTuple):
    replies: tuple[ToolReply, ...]


ConversationMessage: TypeAlias = PersonMessage | ModelMessage | ToolRepliesMessage


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """What is sent besides the conversation. None is not sent."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    tool_choice: str | None = None
    context: int | None = None

    def to_wire(self) -> Json:
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


NO_MODEL_PARAMETERS: Final = ModelParameters()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything that a model is asked with. `is_local`: the endpoint is not the vendor's own."""

    model: str
    system: str
    messages: tuple[ConversationMessage, ...]
    tools: tuple[Json, ...]
    parameters: ModelParameters = NO_MODEL_PARAMETERS
    is_local: bool = True

    def to_wire(self) -> Json:
        """The request as far as it matters for the answer, in a form that is the same each time."""
        return {
            "model": self.model,
            "system": self.system,
            "messages": [message_to_wire(message) for message in self.messages],
            "tools": list(self.tools),
            "parameters": self.parameters.to_wire(),
        }


def message_to_wire(message: ConversationMessage) -> Json:
    if isinstance(message, PersonMessage):
        return {"user": message.text}
    if isinstance(message, ModelMessage):
        calls = [[call.name, call.arguments] for call in message.answer.calls]
        return {"assistant": message.answer.text, "calls": calls}
    return {"results": [[reply.text, reply.is_error] for reply in message.replies]}


class Dialect(NamedTuple):
    """One kind of endpoint. `key_env` is the vendor's key, which goes to `home` alone."""

    path: str
    home: str
    key_env: str
    make_headers: Callable[[str | None], dict[str, str]]
    make_body: Callable[[ModelRequest], Json]
    read_answer: Callable[[Json], ModelAnswer]
    switch: str
    """What turns tool calls on, for whoever sees a call written as text."""


def make_name_map(names: Sequence[str]) -> dict[str, str]:
    """Tool → the name that endpoints take: letters, digits, `_` and `-`, at most 64. One to one."""
    taken, mapped = set[str](), dict[str, str]()
    # Names that are fine stay, whatever others become.
    for name in sorted(names, key=lambda name: _FINE.fullmatch(name) is None):
        shown = name if _FINE.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:55].strip("_") or "tool"
        if shown in taken or shown in mapped.values():
            shown = f"{shown[:55]}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        taken.add(shown)
        mapped[name] = shown
    return mapped


_FINE: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def clean_endpoint_text(text: Any) -> str:
    """A text of an endpoint: composed characters, nothing hidden, nothing that looks like a secret."""
    return redact_text(normalize("NFC", text), limit=MAX_TEXT_LENGTH, multiline=True) if isinstance(text, str) else ""


def clean_value(value: Any, depth: int = 24) -> Any:
    """Arguments: their texts stay as they are, unless one looks like a secret."""
    if depth == 0:
        return None
    if isinstance(value, str):
        composed = normalize("NFC", value)[:MAX_TEXT_LENGTH]
        masked = redact_text(composed, limit=MAX_TEXT_LENGTH, multiline=True)
        return masked if REDACTION_MASK in masked and REDACTION_MASK not in composed else composed
    if is_object(value):
        return {str(name)[:256]: clean_value(below, depth - 1) for name, below in value.items()}
    return [clean_value(below, depth - 1) for below in value] if is_array(value) else value


def _make_call(name: Any, arguments: Any, id: Any) -> ModelCall:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    return ModelCall(
        clean_endpoint_text(name)[:200],
        clean_value(arguments) if is_object(arguments) else None,
        id if isinstance(id, str) else "",
    )


def _objects(value: Any) -> list[Json]:
    return [each for each in value[:MAX_CALLS] if is_object(each)] if is_array(value) else []


def _usage(body: Json, *names: str) -> TokenUsage:
    counts = [sum(n for name in part.split("+") if isinstance(n := body.get(name), int)) for part in names]
    return TokenUsage(counts[0] or None, counts[1] or None)


def _bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _arguments_text(call: ModelCall) -> str:
    return json.dumps(call.arguments or {}, ensure_ascii=False)


def _id(call: ModelCall, at: int) -> str:
    return call.id or f"call_{at + 1}"


# -- chat


def _chat_messages(request: ModelRequest) -> list[Json]:
    made: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
    for message in request.messages:
        if isinstance(message, PersonMessage):
            made.append({"role": "user", "content": message.text})
        elif isinstance(message, ModelMessage):
            made.append(message.answer.raw or _chat_answer(message.answer))
        else:
            made += [
                {"role": "tool", "tool_call_id": _id(reply.call, at), "content": reply.text}
                for at, reply in enumerate(message.replies)
            ]
    return made


def _chat_answer(answer: ModelAnswer) -> Json:
    calls = [
        {
            "id": _id(call, at),
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments_text(call)},
        }
        for at, call in enumerate(answer.calls)
    ]
    return {"role": "assistant", "content": answer.text or None, **({"tool_calls": calls} if calls else {})}


def _make_chat_body(request: ModelRequest) -> Json:
    given, choice = request.parameters, request.parameters.tool_choice
    named = (
        choice if choice in (None, "auto", "none", "required") else {"type": "function", "function": {"name": choice}}
    )
    limit = "max_tokens" if request.is_local else "max_completion_tokens"
    return _drop_none(
        {
            "model": request.model,
            "messages": _chat_messages(request),
            "tools": shape_tools("openai-chat", request.tools) or None,
            "tool_choice": named,
            "temperature": given.temperature,
            limit: given.max_output_tokens,
            # llama.cpp makes one call at a time unless it is told otherwise.
            "parallel_tool_calls": True if request.is_local and request.tools else None,
        }
    )


_CHAT_STOPS: Final[Mapping[Any, AnswerStop]] = {"length": "length", "content_filter": "filtered"}


def _read_chat(body: Json) -> ModelAnswer:
    choice = next(iter(_objects(body.get("choices"))), None)
    if choice is None or not is_object(choice.get("message")):
        raise ValueError("there is no choices[0].message")
    message: Json = choice["message"]
    calls = tuple(
        _make_call(about.get("name"), about.get("arguments"), each.get("id"))
        for each in _objects(message.get("tool_calls"))
        for about in (object_or_empty(each.get("function")),)
    )
    refusal = message.get("refusal")
    stop: AnswerStop = "refused" if refusal else _CHAT_STOPS.get(choice.get("finish_reason"), "end")
    usage = _usage(object_or_empty(body.get("usage")), "prompt_tokens", "completion_tokens")
    sent = {name: message[name] for name in ("content", "tool_calls") if message.get(name) is not None}
    return ModelAnswer(
        clean_endpoint_text(message.get("content") or refusal),
        calls,
        stop,
        usage,
        {"role": "assistant", "content": None, **sent},
    )


# -- responses


def _make_responses_body(request: ModelRequest) -> Json:
    items: list[Json] = []
    for message in request.messages:
        if isinstance(message, PersonMessage):
            items.append({"role": "user", "content": message.text})
        elif isinstance(message, ModelMessage):
            items += message.answer.raw or _responses_answer(message.answer)
        else:
            items += [
                {"type": "function_call_output", "call_id": _id(reply.call, at), "output": reply.text}
                for at, reply in enumerate(message.replies)
            ]
    given, choice = request.parameters, request.parameters.tool_choice
    return _drop_none(
        {
            "model": request.model,
            "instructions": request.system or None,
            "input": items,
            "tools": shape_tools("openai", request.tools) or None,
            "tool_choice": choice
            if choice in (None, "auto", "none", "required")
            else {"type": "function", "name": choice},
            "temperature": given.temperature,
            "max_output_tokens": given.max_output_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
    )


def _responses_answer(answer: ModelAnswer) -> list[Json]:
    said: list[Json] = [{"role": "assistant", "content": answer.text}] if answer.text else []
    return said + [
        {"type": "function_call", "call_id": _id(call, at), "name": call.name, "arguments": _arguments_text(call)}
        for at, call in enumerate(answer.calls)
    ]


def _read_responses(body: Json) -> ModelAnswer:
    if not is_array(body.get("output")):
        raise ValueError("there is no output")
    output = _objects(body["output"])
    parts = [part for item in output if item.get("type") == "message" for part in _objects(item.get("content"))]
    refusals = [part.get("refusal") for part in parts if part.get("type") == "refusal"]
    texts = [part.get("text") for part in parts if isinstance(part.get("text"), str)]
    calls = tuple(
        _make_call(item.get("name"), item.get("arguments"), item.get("call_id"))
        for item in output
        if item.get("type") == "function_call"
    )
    why = object_or_empty(body.get("incomplete_details")).get("reason")
    stop: AnswerStop = "refused" if refusals else _RESPONSES_STOPS.get(why, "end")
    usage = _usage(object_or_empty(body.get("usage")), "input_tokens", "output_tokens")
    return ModelAnswer(clean_endpoint_text("\n".join(map(str, texts or refusals))), calls, stop, usage, output)


_RESPONSES_STOPS: Final[Mapping[Any, AnswerStop]] = {"max_output_tokens": "length", "content_filter": "filtered"}


# -- anthropic


def _anthropic_headers(key: str | None) -> dict[str, str]:
    return {"anthropic-version": ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}


def _make_anthropic_body(request: ModelRequest) -> Json:
    made: list[Json] = []
    for message in request.messages:
        if isinstance(message, ModelMessage):
            made.append({"role": "assistant", "content": message.answer.raw or _anthropic_answer(message.answer)})
            continue
        blocks = (
            [{"type": "text", "text": message.text}] if isinstance(message, PersonMessage) else _tool_results(message)
        )
        # All results, and what the person says after them, are one message.
        if made and made[-1]["role"] == "user":
            made[-1]["content"] += blocks
        else:
            made.append({"role": "user", "content": blocks})
    given, choice = request.parameters, request.parameters.tool_choice
    named = {"required": {"type": "any"}}.get(choice or "", {"type": choice} if choice in ("auto", "none") else None)
    if choice and named is None:
        named = {"type": "tool", "name": choice}
    return _drop_none(
        {
            "model": request.model,
            "system": request.system or None,
            "messages": made,
            "tools": shape_tools("anthropic", request.tools) or None,
            "tool_choice": named,
            "temperature": given.temperature,
            "max_tokens": given.max_output_tokens or ANTHROPIC_MAX_TOKENS,
        }
    )


def _tool_results(message: ToolRepliesMessage) -> list[Json]:
    return [
        {
            "type": "tool_result",
            "tool_use_id": _id(reply.call, at),
            "content": reply.text,
            **({"is_error": True} if reply.is_error else {}),
        }
        for at, reply in enumerate(message.replies)
    ]


def _anthropic_answer(answer: ModelAnswer) -> list[Json]:
    said: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
    return said + [
        {"type": "tool_use", "id": _id(call, at), "name": call.name, "input": dict(call.arguments or {})}
        for at, call in enumerate(answer.calls)
    ]


def _read_anthropic(body: Json) -> ModelAnswer:
    if not is_array(body.get("content")):
        raise ValueError("there is no content")
    content = _objects(body["content"])
    texts = [block.get("text") for block in content if block.get("type") == "text"]
    calls = tuple(
        _make_call(block.get("name"), block.get("input"), block.get("id"))
        for block in content
        if block.get("type") == "tool_use"
    )
    stop: AnswerStop = _ANTHROPIC_STOPS.get(body.get("stop_reason"), "end")
    said = object_or_empty(body.get("usage"))
    usage = _usage(said, "input_tokens+cache_creation_input_tokens+cache_read_input_tokens", "output_tokens")
    return ModelAnswer(clean_endpoint_text("\n".join(map(str, texts))), calls, stop, usage, content)


_ANTHROPIC_STOPS: Final[Mapping[Any, AnswerStop]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


# -- ollama


def _make_ollama_body(request: ModelRequest) -> Json:
    made: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
    for message in request.messages:
        if isinstance(message, PersonMessage):
            made.append({"role": "user", "content": message.text})
        elif isinstance(message, ModelMessage):
            made.append(message.answer.raw or _ollama_answer(message.answer))
        else:
            made += [{"role": "tool", "tool_name": reply.call.name, "content": reply.text} for reply in message.replies]
    given = request.parameters
    options = _drop_none(
        {
            "num_ctx": given.context or OLLAMA_CONTEXT,
            "num_predict": given.max_output_tokens,
            "temperature": given.temperature,
        }
    )
    return _drop_none(
        {
            "model": request.model,
            "messages": made,
            "tools": shape_tools("openai-chat", request.tools) or None,
            "stream": False,
            "options": options,
        }
    )


def _ollama_answer(answer: ModelAnswer) -> Json:
    calls = [{"function": {"name": call.name, "arguments": dict(call.arguments or {})}} for call in answer.calls]
    return {"role": "assistant", "content": answer.text, **({"tool_calls": calls} if calls else {})}


def _read_ollama(body: Json) -> ModelAnswer:
    message = body.get("message")
    if not is_object(message):
        raise ValueError("there is no message")
    calls = tuple(
        _make_call(about.get("name"), about.get("arguments"), "")
        for each in _objects(message.get("tool_calls"))
        for about in (object_or_empty(each.get("function")),)
    )
    stop: AnswerStop = "length" if body.get("done_reason") == "length" else "end"
    usage = _usage(body, "prompt_eval_count", "eval_count")
    sent = {name: message[name] for name in ("content", "tool_calls", "thinking") if message.get(name) is not None}
    return ModelAnswer(clean_endpoint_text(message.get("content")), calls, stop, usage, {"role": "assistant", **sent})


def _drop_none(members: Json) -> Json:
    return {name: value for name, value in members.items() if value is not None}


_CHAT_SWITCH: Final = (
    "tool calls may be off: vLLM needs --enable-auto-tool-choice --tool-call-parser, llama.cpp needs --jinja"
)

DIALECTS: Final[Mapping[str, Dialect]] = {
    "chat": Dialect(
        "/v1/chat/completions",
        "https://api.openai.com",
        "OPENAI_API_KEY",
        _bearer,
        _make_chat_body,
        _read_chat,
        _CHAT_SWITCH,
    ),
    "responses": Dialect(
        "/v1/responses",
        "https://api.openai.com",
        "OPENAI_API_KEY",
        _bearer,
        _make_responses_body,
        _read_responses,
        _CHAT_SWITCH,
    ),
    "anthropic": Dialect(
        "/v1/messages",
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        _anthropic_headers,
        _make_anthropic_body,
        _read_anthropic,
        "the endpoint may not know tools",
    ),
    "ollama": Dialect(
        "/api/chat",
        "http://127.0.0.1:11434",
        "",
        _bearer,
        _make_ollama_body,
        _read_ollama,
        "the model may have no template for tools: `ollama show MODEL` lists its capabilities",
    ),
}
