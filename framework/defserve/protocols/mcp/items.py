"""MCP items (schema: BaseMetadata, Icons, `_meta`): what tools, resources and prompts have in common."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from defserve.base.frozen import Frozen
from defserve.binding.option_rules import LIST, OBJECT, TEXT, OptionRule, impossible, one_of
from defserve.binding.signature import Signature
from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, UsageError, did_you_mean
from defserve.limits import Limits
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.identity import Icon, icons_wire
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.wire.messages import Params

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

ORIGINAL = "original"
"""The facet of a tool that was renamed where it is served: the name it was declared with."""

ANSWER_PARAMS = frozenset({"requestState", "inputResponses"})
"""The params of a request that brings answers. They are read before anything runs."""


class ItemOptions(Frozen):
    """What every item may say about itself, and how its function runs: `timeout` is in seconds.

    `scopes` are what a caller's token must hold to see and use it.
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon | str | Mapping[str, Any]] = ()
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    inline: bool = False
    scopes: Sequence[str] = ()


O = TypeVar("O", bound=ItemOptions)  # noqa: E741
T = TypeVar("T")


class Item(Generic[O]):
    """A function offered to peers under a name. `owner` is the server it was declared on.

    `facets` holds what each extension has read about it, by the extension's name. The extension that reads its security
    sets `is_dangerous`, so that others treat it with care.
    """

    __slots__ = ("name", "options", "function", "owner", "facets", "is_dangerous")

    kind: ClassVar[str]
    protects_itself: ClassVar[bool] = False
    """Whether it shows and does only what its caller may, so that no default rule about names concerns it."""
    backend: Any = None
    """The server behind this one that it belongs to. None: it is our own."""

    def __init__(self, name: str, options: O, function: Function, owner: Any) -> None:
        self.name, self.options, self.function, self.owner = name, options, function, owner
        self.facets: dict[str, Any] = {}
        self.is_dangerous = False

    @property
    def server_id(self) -> str | None:
        """The id of the server behind this one that it belongs to."""
        return self.backend.id if self.backend is not None else None

    @property
    def where(self) -> str:
        """`file:line` of the function."""
        return self.function.signature.where

    @property
    def description(self) -> str:
        """The option, or the docstring; empty without either."""
        return self.options.description or self.function.signature.description or ""

    def check(self, limits: Limits) -> None:
        """Raises UsageError for an item that goes beyond what its server allows."""
        options, subject = self.options, f"{self.kind} {self.name!r}"
        if (options.timeout or 0) > limits.tool_max:
            raise UsageError(
                f"{subject}: timeout={options.timeout} is longer than the {limits.tool_max:g} s allowed",
                where=self.where,
                fix="shorten it, or serve with Limits(tool_max=…)",
            )
        written = options.description or self.function.signature.function.__doc__ or ""
        # Parsing the docstring costs an import, so it is parsed only if it could be too long.
        if len(written) > limits.description and len(self.description) > limits.description:
            raise UsageError(
                f"{subject}: its description is longer than {limits.description} characters",
                where=self.where,
                fix="models read it with every request: shorten it, or serve with Limits(description=…)",
            )

    def begin(self, call: Call) -> float:
        """Make this the subject of a call; the seconds its function may take."""
        call.subject = self
        return self.options.timeout or call.session.composition.limits.tool

    def metadata(self, dialect: Dialect, vendor: Mapping[str, Any] | None = None) -> Params:
        """`title`, `icons` and `_meta`, as far as the version has them and the author (or `vendor`) fills them."""
        options, has, found = self.options, dialect.has, Params()
        if options.title and "titles" in has:
            found["title"] = options.title
        if options.icons and "icons" in has:
            found["icons"] = icons_wire(options.icons)
        if (options.meta or vendor) and "meta" in has:
            found["_meta"] = {**(options.meta or {}), **(vendor or {})}
        return found


Late = Callable[[Call, str], Awaitable[bool]]
"""Waits for items that may still come, if a name or URI could be one of theirs. Whether to look again."""


async def read_answers(call: Call) -> None:
    """Read the answers that a request brings. Raises InvalidParams."""
    from defserve.protocols.mcp.asking import round_trips

    await round_trips.read_answers(call)


def find(call: Call, registry: Registry[T], name: str, unknown: type[InvalidParams] = InvalidParams) -> T:
    """The item with this name. Raises `unknown` if there is none, or if the caller may not see it."""
    item, composition = registry.get(name), call.session.composition
    if item is None or (composition.hides and not composition.visible(call, item)):
        raise unknown(f"Unknown {registry.kind}: {name}", data={registry.kind: name})
    return item


def checked_name(kind: str, given: str | None, signature: Signature) -> str:
    """The name of an item. Raises UsageError for a name that clients may refuse."""
    name = given if given is not None else signature.name
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{kind} name {name!r} is not 1 to 128 characters of A-Z a-z 0-9 _ . -",
            where=signature.where,
            fix=f'give it another: @server.{kind}(name="…")',
        )
    return name


RULES: Final[Mapping[str, OptionRule]] = {
    **dict.fromkeys(("name", "title", "description", "mime_type", "domain"), TEXT),
    **dict.fromkeys(("icons", "scopes", "tags", "keywords"), LIST),
    **dict.fromkeys(("meta", "annotations", "schema"), OBJECT),
    **dict.fromkeys(("inline", "listed", "border", "bridge"), one_of(True, False)),
    "structured": one_of(True, False, "bare"),
}

_HINT = bool, "use True or False"
HINTS: Final[Mapping[str, tuple[Any, str]]] = {
    **dict.fromkeys(("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"), _HINT),
    "title": (str, "give a text"),
}
"""Annotation of a tool → its type, and what to write instead."""
RESOURCE_HINTS: Final[Mapping[str, tuple[Any, str]]] = {
    "audience": (object, ""),
    "priority": (int | float, "give a number"),
    **dict.fromkeys(("lastModified", "last_modified"), (str, "give a text")),
}


def check_values(
    options: ItemOptions, signature: Signature, hints: Mapping[str, tuple[Any, str]] = RESOURCE_HINTS
) -> None:
    """Raises UsageError for a value that an option cannot have. `hints`: the annotations that the item may have."""
    given: dict[str, Any] = vars(options)
    found = impossible(given, RULES) or _misspelt(given.get("annotations") or {}, hints)
    if found is not None:
        kind = type(options).__name__.removesuffix("Options").lower()
        problem = f"{signature.name}: {kind}({found[0]}) is not possible"
        raise UsageError(problem, where=signature.where, fix=found[1])


def _misspelt(annotations: Mapping[str, Any], hints: Mapping[str, tuple[Any, str]]) -> tuple[str, str] | None:
    for name, value in annotations.items():
        if name not in hints:
            # Other names pass, because some client may know them. One that is nearly ours is a slip.
            if fix := did_you_mean(str(name), hints, " ").strip():
                return f"annotations={{{name!r}: …}}", fix
        elif not isinstance(value, hints[name][0]):
            return f"annotations={{{name!r}: {value!r}}}", hints[name][1]
    return None


def check_running(subject: str, options: ItemOptions, signature: Signature) -> None:
    """Raises UsageError for options with which the function could not run."""
    if options.inline and signature.flow != "sync":
        raise UsageError(
            f"{subject} is {signature.flow} and inline=True", where=signature.where, fix="drop inline=True"
        )
    timeout: Any = options.timeout
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise UsageError(
            f"{subject}: timeout must be positive seconds, not {timeout!r}",
            where=signature.where,
            fix="give a number, or leave it out for the default",
        )
