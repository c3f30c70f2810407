"""MCP prompts (server features: prompts): functions that write messages for the client to use.

Also completion (server utilities: completion/complete): suggestions for one argument of a prompt or template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.content import ContentPart
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.json_values import is_array, is_mapping
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import BadArguments, InvalidParams, MethodNotFound, Rejected, UsageError
from defserve.protocols.mcp.errors import read_object_param, read_optional_object_param, read_text_param
from defserve.protocols.mcp.function import FindProvider, Function, find_no_provider
from defserve.protocols.mcp.items import (
    ANSWER_PARAMS,
    Item,
    ItemOptions,
    ListMethod,
    WaitForLateItems,
    check_execution_options,
    check_item_options,
    choose_item_name,
    find_item,
    read_input_answers,
)
from defserve.protocols.mcp.lifecycle import Dialect, get_dialect
from defserve.protocols.mcp.resources import Resource, Resources

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.client_features import Message


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
        find_provider: FindProvider = find_no_provider,
        owner: Any = None,
    ) -> Prompt:
        """Read a function into a prompt. Raises UsageError for anything that could not be called."""
        options = options or PromptOptions()
        bound = Function(function, find_provider, inline=options.inline, gathers=True)
        check_item_options(options, bound.signature)
        name = choose_item_name("prompt", options.name, bound.signature)
        check_execution_options(f"prompt {name!r}", options, bound.signature)
        if bound.signature.returns in (None, type(None)):
            raise UsageError(
                f"prompt {name!r} returns nothing",
                where=bound.signature.where,
                fix="return a text, messages or content",
            )
        return cls(name, options, bound, owner)

    def copy_as(self, name: str) -> Prompt:
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
        result: Params = {"messages": [message.to_wire(get_dialect(call)) for message in messages(value)]}
        return {"description": self.description, **result} if self.description else result


class Prompts(Extension):
    """The prompts of a server: `prompts/list` and `prompts/get`."""

    def __init__(self) -> None:
        self.registry: Registry[Prompt] = Registry("prompt")
        self.late: WaitForLateItems | None = None
        self.prompt_list = ListMethod("prompts", self.registry)

    def methods(self) -> Mapping[str, Handler]:
        return {"prompts/list": self.prompt_list.build_page, "prompts/get": self.get}

    async def get(self, call: Call, params: Params) -> Params:
        name, arguments = read_text_param(params, "name"), read_optional_object_param(params, "arguments")
        if self.late is not None and name not in self.registry:
            await self.late(call, name)
        prompt = find_item(call, self.registry, name)
        seconds = prompt.bind_to_call(call)
        if not ANSWER_PARAMS.isdisjoint(params):
            await read_input_answers(call)
        return prompt.result(call, await prompt.function.run(call, prompt.validate(arguments or {}), seconds))


def messages(value: Any) -> list[Message]:
    """What a prompt function returned: a text, a part, a message, or a list of them."""
    # Imported late: its dataclass takes 2 ms to make, and servers without prompts need none of it.
    from defserve.protocols.mcp.asking.client_features import Message, User

    if is_array(value):
        return [message for item in value for message in messages(item)]
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | ContentPart):
        return [User(value)]
    if is_mapping(value) and {"role", "content"} <= set(value):
        return [Message(value["role"], value["content"])]
    raise TypeError(f"a prompt returns text, messages or content, not {type(value).__name__}")


# -- MCP completion (server utilities: completion/complete): suggestions for one argument of a prompt or template.


MAX_COMPLETION_VALUES = 100


class Completion:
    """A function `(value, …)` that suggests values of one argument.

    Besides `value` it may take other arguments of the same prompt or template by name: what the client has
    filled in so far, validated and judged as its own types say; else its default, or None.
    """

    __slots__ = ("function", "takes", "owner", "facets")

    kind = "completion"

    def __init__(self, function: Function, owner: Any = None) -> None:
        self.function, self.owner = function, owner
        self.facets: dict[str, Any] = {}
        self.takes = tuple(p.wire_name for p in function.signature.parameters)
        _let_be_missing(function)

    @property
    def name(self) -> str:
        return self.function.signature.name

    @property
    def where(self) -> str:
        return self.function.signature.where

    @classmethod
    def of(cls, function: Callable[..., Any], *, find_provider: FindProvider, owner: Any = None) -> Completion:
        bound = Function(function, find_provider, gathers=True)
        if all(p.name != "value" for p in bound.signature.parameters):
            raise UsageError(
                f"completion function {bound.signature.name!r} does not take `value`",
                where=bound.signature.where,
                fix="declare it as (value: str) -> list[str]; other arguments may follow by name",
            )
        return cls(bound, owner)


@runtime_checkable
class CompletesItself(Protocol):
    """A prompt or template that has suggestions of its own, such as one of another server."""

    async def complete(self, call: Call, params: Params) -> Params:
        """The result of `completion/complete` with these params."""
        ...


class Completions(Extension):
    """Suggestions by (prompt name or template, argument); literal and enum arguments complete themselves."""

    def __init__(self, prompts: Prompts, resources: Resources) -> None:
        self._prompts, self._resources = prompts, resources
        self.registry: Registry[Completion] = Registry("completion")

    def methods(self) -> Mapping[str, Handler]:
        return {"completion/complete": self.complete}

    def add(self, target: str, argument: str, completion: Completion) -> None:
        self.registry.add(f"{target} {argument}", completion, where=completion.function.signature.where)

    def check(self) -> None:
        """Raises UsageError for a completion whose prompt, template or argument does not exist."""
        for key, completion in self.registry.items():
            target, _, argument = key.rpartition(" ")
            item = self._prompts.registry.get(target) or self._resources.templates.get(target)
            known = [p.wire_name for p in item.function.signature.parameters] if item is not None else []
            if argument not in known:
                problem = f"has no argument {argument!r}" if item is not None else "is no prompt or resource template"
                raise UsageError(
                    f"completion of {argument!r} for {target!r}: {target!r} {problem}",
                    where=completion.function.signature.where,
                    fix=f"use one of {', '.join(known)}" if known else "check its spelling",
                )

    @property
    def offered(self) -> bool:
        """Whether anything can be completed at all."""
        return len(self.registry) > 0 or len(self._prompts.registry) > 0 or len(self._resources.templates) > 0

    async def complete(self, call: Call, params: Params) -> Params:
        if not self.offered:
            raise MethodNotFound(f"Method not found: {call.method} (this server completes nothing)")
        ref = read_object_param(params, "ref")
        if (late := self._prompts.late) is not None:
            await late(call, str(ref.get("name") or ref.get("uri") or ""))
        target, item = self._target(call, ref)
        if isinstance(item, CompletesItself):
            return await item.complete(call, params)
        argument, context = read_object_param(params, "argument"), read_optional_object_param(params, "context") or {}
        name, value = read_text_param(argument, "name"), read_text_param(argument, "value")
        annotations = {p.wire_name: p.annotation for p in item.function.signature.parameters}
        if name not in annotations:
            raise InvalidParams(f"Unknown argument: {name}")
        if (completion := self.registry.get(f"{target} {name}")) is None:
            return _completion([c for c in _choices(annotations[name]) if c.startswith(value)])
        known = read_optional_object_param(context, "arguments") or {}
        given = {takes: known[takes] for takes in completion.takes if takes in known} | {"value": value}
        try:
            kwargs = completion.function.arguments.validate(given)
        except (BadArguments, Rejected):
            return _completion(None)  # a form that is half filled in is no error
        return _completion(await completion.function.run(call, kwargs, call.session.composition.limits.tool))

    def _target(self, call: Call, ref: Params) -> tuple[str, Prompt | Resource]:
        kind = ref.get("type")
        if kind == "ref/prompt":
            prompt = find_item(call, self._prompts.registry, read_text_param(ref, "name"))
            return prompt.name, prompt
        if kind == "ref/resource":
            uri = read_text_param(ref, "uri")
            resource = self._resources.templates.get(uri) or self._resources.concrete.get(uri)
            if resource is not None and call.session.composition.visible(call, resource):
                return resource.uri, resource
            raise InvalidParams(f"Unknown resource template: {uri}", data={"uri": uri})
        raise InvalidParams("Invalid params: ref.type must be ref/prompt or ref/resource")


def _let_be_missing(function: Function) -> None:
    """Give None for what the client has not filled in yet and the function has no default for."""
    signature = function.signature
    if not any(p.required and p.name != "value" for p in signature.parameters):
        return
    lenient = copy(signature)
    lenient.parameters = tuple(map(copy, signature.parameters))
    for parameter in lenient.parameters:
        if parameter.required and parameter.name != "value":
            parameter.default, parameter.fills = None, True
    function.arguments = ArgumentsSchema.from_signature(lenient)


def _completion(found: str | Iterable[Any] | None) -> Params:
    values = [found] if isinstance(found, str) else [str(value) for value in found or ()]
    return {
        "completion": {
            "values": values[:MAX_COMPLETION_VALUES],
            "total": len(values),
            "hasMore": len(values) > MAX_COMPLETION_VALUES,
        }
    }


def _choices(annotation: Any) -> list[str]:
    """The values of a `Literal`, an `Enum` or a bool, through `Annotated` and optional unions."""
    from enum import Enum
    from typing import Annotated, Literal, get_args, get_origin

    origin = get_origin(annotation)
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin is Literal:
        return [str(value) for value in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    if annotation is bool:
        return ["true", "false"]
    return [choice for option in get_args(annotation) for choice in _choices(option)] if origin is not list else []
