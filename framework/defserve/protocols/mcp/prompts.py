"""MCP prompts (server features: prompts): functions that write messages for the client to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from defserve.binding.content import Part
from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcp.identity import Icon, icons_wire
from defserve.protocols.mcp.lifecycle import Dialect, dialect_of
from defserve.protocols.mcp.listing import Listing
from defserve.protocols.mcp.sampling import Message, User
from defserve.protocols.mcp.tools import NAME
from defserve.wire.messages import Params


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Everything a prompt may say about itself."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon | str | Mapping[str, Any]] = ()
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    inline: bool = False


class Prompt:
    """A function with a name whose arguments are texts on the wire."""

    __slots__ = ("name", "options", "function", "owner")

    def __init__(self, name: str, options: PromptOptions, function: Function, owner: Any) -> None:
        self.name, self.options, self.function, self.owner = name, options, function, owner

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        options: PromptOptions | None = None,
        *,
        find_provider: FindProvider,
        owner: Any = None,
    ) -> Prompt:
        """Read a function into a prompt. Raises UsageError for anything that could not be called."""
        options = options or PromptOptions()
        bound = Function(function, find_provider, inline=options.inline)
        name = options.name if options.name is not None else bound.signature.name
        if not NAME.fullmatch(name):
            raise UsageError(
                f"prompt name {name!r} is not 1 to 128 characters of A-Z a-z 0-9 _ . -",
                where=bound.signature.where,
                fix='give it another: @server.prompt(name="…")',
            )
        if bound.signature.returns in (None, type(None)):
            raise UsageError(
                f"prompt {name!r} returns nothing",
                where=bound.signature.where,
                fix="return a text, messages or content",
            )
        return cls(name, options, bound, owner)

    def renamed(self, name: str) -> Prompt:
        """The same prompt under another name, for mounting."""
        return Prompt(name, replace(self.options, name=name), self.function, self.owner)

    @property
    def where(self) -> str:
        return self.function.signature.where

    def describe(self, dialect: Dialect) -> Params:
        options, has, signature = self.options, dialect.has, self.function.signature
        fields: Params = {"name": self.name, "description": options.description or signature.description or ""}
        if signature.parameters:
            fields["arguments"] = [self._argument(p) for p in signature.parameters]
        optional = {
            "title": options.title if "titles" in has else None,
            "icons": icons_wire(options.icons) if "icons" in has else None,
            "_meta": dict(options.meta) if options.meta and "meta" in has else None,
        }
        return fields | {key: value for key, value in optional.items() if value}

    def _argument(self, parameter: Any) -> Params:
        fields: Params = {"name": parameter.wire_name, "required": parameter.required}
        if parameter.description:
            fields["description"] = parameter.description
        return fields


class Prompts:
    """The prompts of a server: `prompts/list` and `prompts/get`."""

    def __init__(self) -> None:
        self.registry: Registry[Prompt] = Registry("prompt")
        self._listing = Listing("prompts", self.registry, lambda item, dialect: item.describe(dialect))

    def list(self, call: Call, params: Params) -> Any:
        return self._listing.page(call, params)

    async def get(self, call: Call, params: Params) -> Params:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise InvalidParams("Invalid params: name must be a string and arguments an object")
        prompt = self.registry.get(name)
        if prompt is None or not call.session.composition.visible(call, prompt):
            raise InvalidParams(f"Unknown prompt: {name}")
        call.subject = prompt
        if "requestState" in params or "inputResponses" in params:
            from defserve.protocols.mcp.rounds import begin

            begin(call, params)
        seconds = prompt.options.timeout or call.session.composition.limits.tool
        kwargs = prompt.function.arguments.validate(arguments)  # pyright: ignore[reportUnknownArgumentType]
        value = await prompt.function.run(call, kwargs, seconds)
        result: Params = {"messages": [message.wire(dialect_of(call)) for message in messages(value)]}
        description = prompt.options.description or prompt.function.signature.description
        return {"description": description, **result} if description else result


def messages(value: Any) -> list[Message]:
    """What a prompt function returned: a text, a part, a message, or a list of them."""
    if isinstance(value, list | tuple):
        return [message for item in value for message in messages(item)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | Part):
        return [User(value)]
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if {"role", "content"} <= set(fields):
            return [Message(fields["role"], fields["content"])]
    kind = type(value).__name__  # pyright: ignore[reportUnknownArgumentType]
    raise TypeError(f"a prompt returns text, messages or content, not {kind}")
