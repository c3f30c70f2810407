"""MCP sampling (client features: sampling): the request as Python objects, and the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from defserve.binding.content import Audio, Image, Part, Text
from defserve.errors import UsageError
from defserve.protocols.mcp.content import block
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.wire.jsonvalue import as_list
from defserve.wire.messages import Params


class Message:
    """One message of a conversation: `Message("user", "hello")`, or `User("hello")`, `Assistant("hi")`."""

    __slots__ = ("role", "content")

    def __init__(self, role: str, content: str | Part) -> None:
        if role not in ("user", "assistant"):
            raise UsageError(f"a message's role is 'user' or 'assistant', not {role!r}")
        self.role = role
        self.content: Part = Text(content) if isinstance(content, str) else content

    def wire(self, dialect: Dialect) -> Params:
        """The message for the wire, as the client's version has it."""
        return {"role": self.role, "content": block(self.content, dialect)}


def User(content: str | Part) -> Message:
    """A message of the user's."""
    return Message("user", content)


def Assistant(content: str | Part) -> Message:
    """A message of the model's."""
    return Message("assistant", content)


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What to ask of the client's model."""

    messages: Sequence[Message | str | Mapping[str, Any]]
    max_tokens: int = 1024
    system: str | None = None
    temperature: float | None = None
    stop: Sequence[str] = ()
    models: Sequence[str] = ()
    cost: float | None = None
    speed: float | None = None
    intelligence: float | None = None
    metadata: Mapping[str, Any] | None = None
    include_context: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | None = None


def read_options(
    messages: str | Sequence[Message | str | Mapping[str, Any]] | SampleOptions,
    max_tokens: int,
    system: str | None,
    temperature: float | None,
) -> SampleOptions:
    """What an author gave to `ctx.sample`, as options."""
    if isinstance(messages, SampleOptions):
        return messages
    given = [messages] if isinstance(messages, str) else messages
    return SampleOptions(given, max_tokens=max_tokens, system=system, temperature=temperature)


def sampling_params(options: SampleOptions, dialect: Dialect, offered: Mapping[str, Any]) -> Params:
    """`CreateMessageRequest` params. `offered` is the client's sampling capability."""
    # Since 2025-11-25 context is only asked of a client that names it; the client is free to ignore it anyway.
    context = "sampling_tools" not in dialect.has or "context" in offered or options.include_context == "none"
    preferences = {
        "hints": [{"name": name} for name in options.models],
        "costPriority": options.cost,
        "speedPriority": options.speed,
        "intelligencePriority": options.intelligence,
    }
    optional = {
        "systemPrompt": options.system,
        "temperature": options.temperature,
        "stopSequences": list(options.stop) or None,
        "modelPreferences": {k: v for k, v in preferences.items() if v not in (None, [])} or None,
        "metadata": dict(options.metadata) if options.metadata else None,
        "includeContext": options.include_context if context else None,
        "tools": [dict(tool) for tool in options.tools] or None,
        "toolChoice": {"mode": options.tool_choice} if options.tool_choice else None,
    }
    messages = [_message(message, dialect) for message in options.messages]
    params: Params = {"messages": messages, "maxTokens": options.max_tokens}
    return params | {key: value for key, value in optional.items() if value is not None}


def _message(message: Message | str | Mapping[str, Any], dialect: Dialect) -> Params:
    if isinstance(message, str):
        return User(message).wire(dialect)
    if not isinstance(message, Message):
        return dict(message)
    if not isinstance(message.content, Text | Image | Audio):
        # SamplingMessage has fewer kinds of content than PromptMessage.
        raise UsageError(
            f"a {type(message.content).__name__} cannot be sampled from", fix="send its text, an Image or an Audio"
        )
    return message.wire(dialect)


class Sample:
    """What the client's model wrote: `text`, and the whole reply in `raw`."""

    __slots__ = ("raw",)

    def __init__(self, raw: Params) -> None:
        self.raw = raw

    @property
    def content(self) -> list[Params]:
        return as_list(self.raw["content"])

    @property
    def text(self) -> str:
        return "".join(part.get("text", "") for part in self.content if part.get("type") == "text")

    @property
    def model(self) -> str:
        return self.raw.get("model", "")

    @property
    def stop_reason(self) -> str | None:
        return self.raw.get("stopReason")

    def __str__(self) -> str:
        return self.text
