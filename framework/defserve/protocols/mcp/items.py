"""MCP items (schema: BaseMetadata, Icons, `_meta`): what tools, resources and prompts have in common.

Their options and names, their lists in pages, and the content blocks that they answer with.
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from defserve.base.frozen import FrozenDataclass
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.binding.content import Audio, ContentPart, Embedded, Image, Link, Text
from defserve.binding.signature import (
    OBJECT_OPTION_RULE,
    TEXT_OPTION_RULE,
    TEXTS_OPTION_RULE,
    OptionRule,
    Signature,
    find_invalid_option,
    is_list_like,
    make_choice_option_rule,
)
from defserve.core.call import Call
from defserve.core.json_values import is_mapping
from defserve.core.messages import EncodedJson, Params, encode_at_startup
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, LimitExceeded, TimedOut, UsageError, did_you_mean
from defserve.limits import Limits
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.lifecycle import Dialect, Icon, build_cache_hints, encode_icons, get_dialect

ITEM_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,128}")

ORIGINAL_NAME_FACET = "original"
"""The facet of a tool that was renamed where it is served: the name it was declared with."""

ANSWER_PARAMS = frozenset({"requestState", "inputResponses"})
"""The params of a request that brings answers. They are read before anything runs."""


class ItemOptions(FrozenDataclass):
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

    def check_limits(self, limits: Limits) -> None:
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

    def bind_to_call(self, call: Call) -> float:
        """Make this the subject of a call; the seconds its function may take."""
        call.subject = self
        return self.options.timeout or call.session.composition.limits.tool

    def metadata(self, dialect: Dialect, vendor: Mapping[str, Any] | None = None) -> Params:
        """`title`, `icons` and `_meta`, as far as the version has them and the author (or `vendor`) fills them."""
        options, has, found = self.options, dialect.has, Params()
        if options.title and "titles" in has:
            found["title"] = options.title
        if options.icons and "icons" in has:
            found["icons"] = encode_icons(options.icons)
        if (options.meta or vendor) and "meta" in has:
            found["_meta"] = {**(options.meta or {}), **(vendor or {})}
        return found


WaitForLateItems = Callable[[Call, str], Awaitable[bool]]
"""Waits for items that may still come, if a name or URI could be one of theirs. Whether to look again."""


async def read_input_answers(call: Call) -> None:
    """Read the answers that a request brings. Raises InvalidParams."""
    from defserve.protocols.mcp.asking import round_trips

    await round_trips.read_client_answers(call)


def find_item(call: Call, registry: Registry[T], name: str, unknown: type[InvalidParams] = InvalidParams) -> T:
    """The item with this name. Raises `unknown` if there is none, or if the caller may not see it."""
    item, composition = registry.get(name), call.session.composition
    if item is None or (composition.hides and not composition.visible(call, item)):
        raise unknown(f"Unknown {registry.kind}: {name}", data={registry.kind: name})
    return item


def choose_item_name(kind: str, given: str | None, signature: Signature) -> str:
    """The name of an item. Raises UsageError for a name that clients may refuse."""
    name = given if given is not None else signature.name
    if not ITEM_NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"{kind} name {name!r} is not 1 to 128 characters of A-Z a-z 0-9 _ . -",
            where=signature.where,
            fix=f'give it another: @server.{kind}(name="…")',
        )
    return name


def _holds_icons(value: Any) -> bool:
    return is_list_like(value) and all(
        isinstance(icon, Icon | str) or (is_mapping(icon) and isinstance(icon.get("src"), str)) for icon in value
    )


def _fix_icons(name: str, value: Any) -> str:
    return f"write {name}=[{value!r}]" if not is_list_like(value) else f"write {name}=[Icon(…)], or a URI"


ICONS_OPTION_RULE: Final = OptionRule(_holds_icons, _fix_icons)

ITEM_OPTION_RULES: Final[Mapping[str, OptionRule]] = {
    **dict.fromkeys(("name", "title", "description", "mime_type", "domain"), TEXT_OPTION_RULE),
    **dict.fromkeys(("scopes", "tags", "keywords", "display_modes"), TEXTS_OPTION_RULE),
    **dict.fromkeys(("meta", "annotations", "schema"), OBJECT_OPTION_RULE),
    "icons": ICONS_OPTION_RULE,
    **dict.fromkeys(("inline", "listed", "border", "bridge"), make_choice_option_rule(True, False)),
    "structured": make_choice_option_rule(True, False, "bare"),
}

_HINT = bool, "use True or False"
TOOL_ANNOTATION_RULES: Final[Mapping[str, tuple[Any, str]]] = {
    **dict.fromkeys(("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"), _HINT),
    "title": (str, "give a text"),
}
"""Annotation of a tool → its type, and what to write instead."""
RESOURCE_ANNOTATION_RULES: Final[Mapping[str, tuple[Any, str]]] = {
    "audience": (object, ""),
    "priority": (int | float, "give a number"),
    **dict.fromkeys(("lastModified", "last_modified"), (str, "give a text")),
}


def check_item_options(
    options: ItemOptions, signature: Signature, hints: Mapping[str, tuple[Any, str]] = RESOURCE_ANNOTATION_RULES
) -> None:
    """Raises UsageError for a value that an option cannot have. `hints`: the annotations that the item may have."""
    given: dict[str, Any] = vars(options)
    found = find_invalid_option(given, ITEM_OPTION_RULES) or _misspelt(given.get("annotations") or {}, hints)
    found = found or _without_json_form(given)
    if found is not None:
        kind = type(options).__name__.removesuffix("Options").lower()
        raise UsageError(f"{signature.name}: {kind}({found[0]}) is not possible", where=signature.where, fix=found[1])


def _without_json_form(given: Mapping[str, Any]) -> tuple[str, str] | None:
    """What would fail each time that the item is listed, and all others with it."""
    for name in ("meta", "annotations"):
        if value := given.get(name):
            try:
                encode_at_startup(value)
            except ValueError as error:
                return f"{name}={value!r}", f"give values that JSON has ({error})"
    return None


def _misspelt(annotations: Mapping[str, Any], hints: Mapping[str, tuple[Any, str]]) -> tuple[str, str] | None:
    for name, value in annotations.items():
        if name not in hints:
            # Other names pass, because some client may know them. One that is nearly ours is a slip.
            if fix := did_you_mean(str(name), hints, " ").strip():
                return f"annotations={{{name!r}: …}}", fix
        elif not isinstance(value, hints[name][0]):
            return f"annotations={{{name!r}: {value!r}}}", hints[name][1]
    return None


def check_execution_options(subject: str, options: ItemOptions, signature: Signature) -> None:
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


# -- MCP pagination (server utilities): lists encoded once per view, with cursors that survive changes.


# Of the pages that are kept: all together, and what the key of one takes.
MAX_LIST_BYTES, LIST_KEY_BYTES = 16 * 1024 * 1024, 4 * 1024


class Listed(Protocol):
    """An item that a list can show."""

    def describe(self, dialect: Dialect) -> Params:
        """The item as a list shows it to a peer of this version."""
        ...


ListedT = TypeVar("ListedT", bound=Listed)


class ListMethod(Generic[ListedT]):
    """One list method: its member name (`tools`), its registry, which items it shows, and how each looks in a dialect.

    Without `describe`, an item describes itself.
    """

    def __init__(
        self,
        member: str,
        registry: Registry[ListedT],
        shows: Callable[[ListedT], bool] = lambda _: True,
        describe: Callable[[ListedT, Dialect], Params] = lambda item, dialect: item.describe(dialect),
    ) -> None:
        self.member, self.registry, self.shows, self.describe = member, registry, shows, describe
        self.meta: Callable[[Call], Params] | None = None
        """The `_meta` of its pages. It may change only with the registry's version, and differ only with the view."""
        self._pages = ByteBoundedCache[EncodedJson](MAX_LIST_BYTES)
        self._version = -1

    def build_page(self, call: Call, params: Params) -> EncodedJson:
        """The page a cursor points to. Callers with the same view share its bytes."""
        dialect, composition = get_dialect(call), call.session.composition
        views = composition.get_views(call)
        position = decode_list_cursor(self.member, params.get("cursor"))
        if self._version != self.registry.version:
            self._pages.clear()
            self._version = self.registry.version
        key = (dialect.version, views, position)
        if (page := self._pages.get(key)) is None:
            began, seconds = monotonic(), composition.limits.discovery
            page = encode_at_startup(self._page(call, dialect, views, position))
            self._pages.store_value(key, page, len(page) + LIST_KEY_BYTES)
            if monotonic() - began > seconds:
                raise TimedOut.of("discovery", f"listing the {self.member}", seconds)
        return page

    def _page(self, call: Call, dialect: Dialect, views: tuple[object, ...], position: int) -> Any:
        composition = call.session.composition
        size = composition.limits.page
        # Look for one more than a page, so that a last page never ends with a cursor to nothing.
        found: list[tuple[int, ListedT]] = []
        for place, item in self.registry.list_after(position, len(self.registry)):
            if self.shows(item) and composition.visible(call, item):
                found.append((place, item))
                if len(found) > size:
                    break
        items = [composition.describe(item, views, self.describe(item, dialect)) for _, item in found[:size]]
        result: Params = {self.member: items, **build_cache_hints(dialect)}
        if self.meta is not None and "meta" in dialect.has and (meta := self.meta(call)):
            result["_meta"] = meta
        if len(found) > size:
            result["nextCursor"] = encode_list_cursor(self.member, found[size - 1][0])
        return dialect.result(call, result)


def is_item_listed(call: Call, method: str, item: Any) -> bool:
    """Whether the list of that method would show the item to the caller of a call."""
    composition = call.session.composition
    if not composition.hides:
        return True
    asker = Call(call.session, call.id, method, call.params, call.raw, call.terms)
    asker.identity = call.identity
    composition.get_views(asker)  # an extension that shows a choice makes it here
    return composition.visible(asker, item)


def encode_list_cursor(member: str, position: int) -> str:
    """The cursor that stands behind a position of a list."""
    from defserve.core import json_values

    return json_values.encode_base64url(f"{member}:{position}".encode())


def decode_list_cursor(member: str, cursor: Any) -> int:
    """The position that a cursor stands behind; -1 without a cursor. Raises InvalidParams for one that is not ours."""
    if cursor is None:
        return -1
    from defserve.core import json_values

    try:
        named, _, position = json_values.decode_base64url(cursor).decode().partition(":")
        if named == member and position.isdecimal() and encode_list_cursor(member, int(position)) == cursor:
            return int(position)
    except (TypeError, ValueError):
        pass
    raise InvalidParams("Invalid cursor", data={"cursor": cursor if isinstance(cursor, str) else None})


# -- MCP content blocks (tools: tool result; prompts: content): an author's parts as a protocol version has them.


def encode_content_blocks(
    said: Sequence[ContentPart] | str, dialect: Dialect, limit: int = sys.maxsize
) -> list[Params]:
    """Parts, or a bare text, as content blocks. A kind the version does not know becomes text that says what it was.

    Raises LimitExceeded if they would be longer than `limit`, before they are encoded.
    """
    size = len(said) if isinstance(said, str) else sum(_least_size(part, dialect) for part in said)
    if size > limit:
        raise LimitExceeded(f"the result is larger than {limit} bytes", data={"limit": "response"})
    if isinstance(said, str):
        return [{"type": "text", "text": said}]
    return [encode_content_block(part, dialect) for part in said]


def encode_content_block(part: ContentPart, dialect: Dialect) -> Params:
    encoded = next(_ENCODERS[kind] for kind in type(part).__mro__ if kind in _ENCODERS)(part, dialect)
    if part.annotations:
        encoded["annotations"] = encode_annotations(part.annotations, dialect)
    if part.meta and "meta" in dialect.has:
        encoded["_meta"] = dict(part.meta)
    return encoded


def _least_size(part: ContentPart, dialect: Dialect) -> int:
    """The least number of bytes that a block of the part takes, found without encoding it."""
    if isinstance(part, Audio) and "audio" not in dialect.has:
        return 0
    text: str | None = getattr(part, "text", None)
    data: bytes | None = getattr(part, "data", None)
    return len(text) if text is not None else 4 * len(data or b"") // 3


def encode_resource_contents(uri: str, part: ContentPart, mime_type: str | None, dialect: Dialect) -> Params:
    """A part as the contents of a resource (resources: resource contents)."""
    found: Params = {"uri": uri}
    if isinstance(part, Embedded):
        found = _to_embedded_contents(part, mime_type)
    elif isinstance(part, Text):
        found |= {"mimeType": mime_type or "text/plain", "text": part.text}
    elif isinstance(part, Image | Audio):
        found |= {"mimeType": mime_type or part.mime_type, "blob": b64encode(part.data).decode()}
    else:
        raise TypeError(f"a resource cannot contain a {type(part).__name__}")
    if part.meta and "meta" in dialect.has:
        found["_meta"] = dict(part.meta)
    return found


def encode_annotations(given: Mapping[str, Any], dialect: Dialect) -> Params:
    """`audience`, `priority`, `lastModified`, as far as the version has them."""
    hidden = () if "last_modified" in dialect.has else ("lastModified", "last_modified")
    shown = ((key, value) for key, value in given.items() if key not in hidden)
    return {"lastModified" if key == "last_modified" else key: value for key, value in shown}


def _audio(part: Any, dialect: Dialect) -> Params:
    if "audio" not in dialect.has:
        return {"type": "text", "text": f"[audio, {part.mime_type}, {len(part.data)} bytes]"}
    return {"type": "audio", "data": b64encode(part.data).decode(), "mimeType": part.mime_type}


def _link(part: Any, dialect: Dialect) -> Params:
    if "resource_links" not in dialect.has:
        return {"type": "text", "text": f"[resource] {part.title or part.name}: {part.uri}"}
    fields = {
        "name": part.name,
        "title": part.title,
        "description": part.description,
        "mimeType": part.mime_type,
        "size": part.size,
    }
    return {"type": "resource_link", "uri": part.uri, **{k: v for k, v in fields.items() if v is not None}}


def _to_embedded_contents(part: Embedded, mime_type: str | None = None) -> Params:
    found: Params = {"uri": part.uri}
    if known := part.mime_type or mime_type:
        found["mimeType"] = known
    if part.text is not None:
        found["text"] = part.text
    else:
        found["blob"] = b64encode(part.data or b"").decode()
    return found


_ENCODERS: Mapping[type[ContentPart], Callable[[Any, Dialect], Params]] = {
    Text: lambda part, _: {"type": "text", "text": part.text},
    Image: lambda part, _: {"type": "image", "data": b64encode(part.data).decode(), "mimeType": part.mime_type},
    Audio: _audio,
    Link: _link,
    Embedded: lambda part, _: {"type": "resource", "resource": _to_embedded_contents(part)},
}
