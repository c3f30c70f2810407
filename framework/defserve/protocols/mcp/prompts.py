"""MCP prompts (server features: prompts): functions that write messages for the client to use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from defserve.binding.content import Part
from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import BadArguments, UsageError
from defserve.protocols.mcp.function import FindProvider, Function, nothing_injectable
from defserve.protocols.mcp.items import (
    ANSWER_PARAMS,
    Item,
    ItemOptions,
    Late,
    check_running,
    check_values,
    checked_name,
    find,
    read_answers,
)
from defserve.protocols.mcp.lifecycle import Dialect, dialect_of
from defserve.protocols.mcp.listing import Listing
from defserve.protocols.mcp.params import optional_fields, text
from defserve.wire.jsonvalue import is_array, is_mapping
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.sampling import Message


class PromptOptions(ItemOptions):
    """Everything a prompt may say about itself."""


class Prompt(Item[PromptOptions]):
    """A function with a name whose arguments are texts on the wire."""

    __slots__ = ()

    kind = "prompt"

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        options: PromptOptions | None = None,
        *,
        find_provider: FindProvider = nothing_injectable,
        owner: Any = None,
    ) -> Prompt:
        """Read a function into a prompt. Raises UsageError for anything that could not be called."""
        options = options or PromptOptions()
        bound = Function(function, find_provider, inline=options.inline, gathers=True)
        check_values(options, bound.signature)
        name = checked_name("prompt", options.name, bound.signature)
        check_running(f"prompt {name!r}", options, bound.signature)
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

    def describe(self, dialect: Dialect) -> Params:
        """The prompt as `prompts/list` shows it to a peer of this version."""
        parameters = self.function.signature.parameters
        described: Params = {"name": self.name, "description": self.description}
        if parameters:
            described["arguments"] = [
                {
                    "name": p.wire_name,
                    "required": p.required,
                    **({"description": p.description} if p.description else {}),
                }
                for p in parameters
            ]
        return described | self.metadata(dialect)

    def validate(self, arguments: Params) -> dict[str, Any]:
        """The keyword arguments for the function. Raises BadArguments.

        Forms of hosts send "" for what a person left blank. It counts as left out where it is no value of the type.
        """
        try:
            return self.function.arguments.validate(arguments)
        except BadArguments as error:
            refused = {problem.field for problem in error.problems}
            optional = {p.wire_name for p in self.function.signature.parameters if not p.required}
            blank = {name for name in refused & optional if arguments.get(name) == ""}
            if not blank:
                raise
            return self.function.arguments.validate({k: v for k, v in arguments.items() if k not in blank})

    def result(self, call: Call, value: Any) -> Params:
        """What its function returned, as `GetPromptResult`."""
        result: Params = {"messages": [message.wire(dialect_of(call)) for message in messages(value)]}
        return {"description": self.description, **result} if self.description else result


class Prompts:
    """The prompts of a server: `prompts/list` and `prompts/get`."""

    def __init__(self) -> None:
        self.registry: Registry[Prompt] = Registry("prompt")
        self.late: Late | None = None
        self.listing = Listing("prompts", self.registry)

    def list(self, call: Call, params: Params) -> Any:
        return self.listing.page(call, params)

    async def get(self, call: Call, params: Params) -> Params:
        name, arguments = text(params, "name"), optional_fields(params, "arguments")
        if self.late is not None and name not in self.registry:
            await self.late(call, name)
        prompt = find(call, self.registry, name)
        seconds = prompt.begin(call)
        if not ANSWER_PARAMS.isdisjoint(params):
            await read_answers(call)
        value = await prompt.function.run(call, prompt.validate(arguments or {}), seconds)
        return prompt.result(call, value)


def messages(value: Any) -> list[Message]:
    """What a prompt function returned: a text, a part, a message, or a list of them."""
    # Imported late: its dataclass takes 2 ms to make, and servers without prompts need none of it.
    from defserve.protocols.mcp.asking.sampling import Message, User

    if is_array(value):
        return [message for item in value for message in messages(item)]
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | Part):
        return [User(value)]
    if is_mapping(value) and {"role", "content"} <= set(value):
        return [Message(value["role"], value["content"])]
    raise TypeError(f"a prompt returns text, messages or content, not {type(value).__name__}")
