"""MCP resources (server features: resources): concrete ones and RFC 6570 templates, listing and reading.

Contents with a `ttl` are cached until they expire. A caller that may not see a URI gets the same answer as for a URI
that does not exist.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.binding.content import ContentPart, Text
from defserve.binding.results import convert_to_plain_json, find_result_annotation
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.json_values import is_array
from defserve.core.messages import Params, encode
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp import items
from defserve.protocols.mcp.errors import ResourceNotFound, read_text_param
from defserve.protocols.mcp.function import FindProvider, Function, find_no_provider
from defserve.protocols.mcp.items import (
    ANSWER_PARAMS,
    Item,
    ItemOptions,
    ListMethod,
    WaitForLateItems,
    check_execution_options,
    check_item_options,
    read_input_answers,
)
from defserve.protocols.mcp.lifecycle import Dialect, build_cache_hints, get_dialect

if TYPE_CHECKING:
    from defserve.binding.signature import Signature
    from defserve.protocols.mcp.uri_template import UriTemplate


MAX_URI_LENGTH = 8 * 1024

# RFC 3986: a scheme and something behind it, without blanks. Template variables are not checked here.
URI = r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+"


class ResourceOptions(ItemOptions):
    """Everything a resource may say about itself.

    `ttl` is how many seconds the contents stay valid. A client may keep them, and a function that sees nothing of the
    caller (no `Context`, no dependency) does not run again meanwhile, for any caller. A resource that is not `listed`
    can be read, and is left out of `resources/list`.
    """

    mime_type: str | None = None
    size: int | None = None
    annotations: Mapping[str, Any] | None = None
    ttl: float = 0.0
    listed: bool = True


class Resource(Item[ResourceOptions]):
    """A function that gives the contents of a URI, or of every URI a template matches."""

    __slots__ = ("uri", "template")

    kind = "resource"

    def __init__(
        self, uri: str, options: ResourceOptions, function: Function, template: UriTemplate | None, owner: Any
    ) -> None:
        super().__init__(options.name or function.signature.name, options, function, owner)
        self.uri, self.template = uri, template

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        uri: str,
        options: ResourceOptions | None = None,
        *,
        find_provider: FindProvider = find_no_provider,
        owner: Any = None,
    ) -> Resource:
        """Read a function into a resource; template variables and parameters have to match."""
        options = options or ResourceOptions()
        bound = Function(function, find_provider, inline=options.inline, gathers=True)
        check_item_options(options, bound.signature)
        where, names = bound.signature.where, {p.name: p for p in bound.signature.parameters}
        template = _template(uri, where) if "{" in uri else None
        if not re.fullmatch(URI, uri):
            raise UsageError(f"resource {uri!r} is not a URI", where=where, fix='give it a scheme: "config://app"')
        check_execution_options(f"resource {uri!r}", options, bound.signature)
        if problem := _problem(options):
            raise UsageError(f"resource {uri!r}: {problem}", where=where)
        variables = set(template.names) if template else set[str]()
        unknown = sorted(variables - set(names))
        missing = sorted(n for n, p in names.items() if n not in variables and p.required)
        if unknown or missing:
            names_of = ", ".join(map(repr, unknown or missing))
            problem = f"the function has no parameter {names_of}" if unknown else f"the URI has no variable {names_of}"
            raise UsageError(
                f"resource {uri!r} does not match function {bound.signature.name!r}: {problem}",
                where=where,
                fix="use the same names in the template and in the signature",
            )
        return cls(uri, options, bound, template, owner)

    def copy_as(self, uri: str) -> Resource:
        """The same resource under another URI, for mounting."""
        template = _template(uri, "") if self.template else None
        return Resource(uri, replace(self.options, name=self.name), self.function, template, self.owner)

    def is_listed(self) -> bool:
        return self.options.listed

    def describe(self, dialect: Dialect) -> Params:
        """The resource, or template, as its list shows it to a peer of this version."""
        options = self.options
        optional = {
            "description": self.description or None,
            "mimeType": options.mime_type,
            "size": None if self.template else options.size,
            "annotations": items.encode_annotations(options.annotations, dialect) if options.annotations else None,
        }
        described: Params = {"uriTemplate" if self.template else "uri": self.uri, "name": self.name}
        described |= {key: value for key, value in optional.items() if value is not None}
        return described | self.metadata(dialect)

    async def read_contents(self, call: Call, uri: str, values: Params, cache: ResourceContentsCache) -> Params:
        """`ReadResourceResult` for one of its URIs; `values` are those of the template's variables."""
        seconds = self.bind_to_call(call)
        if not ANSWER_PARAMS.isdisjoint(call.params):
            await read_input_answers(call)
        dialect, options = get_dialect(call), self.options
        is_cached, left = options.ttl > 0 and self.function.injection is None, options.ttl
        if is_cached and (reading := cache.find_contents(uri, dialect.version)) is not None:
            found, left = reading
        else:
            changes = cache.changes
            kwargs = self.function.arguments.validate(_values(self, values))
            found = self.contents(uri, await self.function.run(call, kwargs, seconds), dialect)
            if is_cached:
                cache.store_contents(uri, dialect.version, found, left, changes)
        return {"contents": found, **build_cache_hints(dialect, int(left * 1000))}

    def contents(self, uri: str, value: Any, dialect: Dialect) -> list[Params]:
        """What its function returned or yielded for a URI, as the wire has it."""
        if self.function.streams:
            value = _join_pieces(value, self.function.signature)
        return contents(uri, value, self.options.mime_type, dialect)


class Resources(Extension):
    """The resources of a server. Concrete ones are matched before templates, templates in order."""

    def __init__(self) -> None:
        self.cache = ResourceContentsCache()
        self.late: WaitForLateItems | None = None
        self.unlisted: Callable[[str], Resource | None] | None = None
        """Finds a resource that is in no list."""
        self.concrete: Registry[Resource] = Registry("resource")
        self.templates: Registry[Resource] = Registry("resource template")
        self.concrete_list = ListMethod("resources", self.concrete, Resource.is_listed)
        self.template_list = ListMethod("resourceTemplates", self.templates, Resource.is_listed)

    def methods(self) -> Mapping[str, Handler]:
        return {
            "resources/list": self.concrete_list.build_page,
            "resources/templates/list": self.template_list.build_page,
            "resources/read": self.read_resource,
        }

    def add(self, resource: Resource, *, replace: bool = False) -> None:
        registry = self.templates if resource.template else self.concrete
        registry.add(resource.uri, resource, where=resource.where, replace=replace)
        self.cache.drop_contents()

    def remove(self, uri: str) -> Resource:
        self.cache.drop_contents()
        return (self.templates if "{" in uri else self.concrete).remove(uri)

    async def read_resource(self, call: Call, params: Params) -> Params:
        uri = read_text_param(params, "uri")
        found = self.find_resource(call, uri)
        if found is None and self.late is not None and await self.late(call, uri):
            found = self.find_resource(call, uri)
        if found is None:
            raise ResourceNotFound(uri)
        resource, values = found
        return await resource.read_contents(call, uri, values, self.cache)

    async def read_contents_for_call(self, call: Call, uri: str) -> Any:
        """The contents of a resource as the peer of a running call would read them. The call's subject stays."""
        subject = call.subject
        try:
            return (await self.read_resource(call, {"uri": uri}))["contents"]
        finally:
            call.subject = subject

    def find_resource(self, call: Call, uri: str) -> tuple[Resource, Params] | None:
        """The resource a caller means by a URI, with the values of its template's variables."""
        if len(uri) > MAX_URI_LENGTH:
            return None
        visible = call.session.composition.visible
        resource = self.concrete.get(uri)
        if resource is not None and visible(call, resource):
            return resource, {}
        is_hidden = resource is not None
        for resource in self.templates:
            assert resource.template is not None
            values = resource.template.match_uri(uri)
            if values is not None:
                if visible(call, resource):
                    return resource, values
                is_hidden = True
        # Who may not see a resource must not get another one in its place.
        found = self.unlisted(uri) if self.unlisted is not None and not is_hidden else None
        return (found, {}) if found is not None and visible(call, found) else None


def contents(uri: str, value: Any, mime_type: str | None, dialect: Dialect) -> list[Params]:
    """What a resource function returned: text, bytes, parts, a list of them, or a value to show as JSON."""
    if isinstance(value, str):
        return [items.encode_resource_contents(uri, Text(value), mime_type, dialect)]
    if isinstance(value, bytes):
        from base64 import b64encode

        return [{"uri": uri, "mimeType": mime_type or "application/octet-stream", "blob": b64encode(value).decode()}]
    if isinstance(value, ContentPart):
        return [items.encode_resource_contents(uri, value, mime_type, dialect)]
    if is_array(value) and value and all(isinstance(item, ContentPart | str | bytes) for item in value):
        return [found for item in value for found in contents(uri, item, mime_type, dialect)]
    return [
        {"uri": uri, "mimeType": mime_type or "application/json", "text": encode(convert_to_plain_json(value)).decode()}
    ]


def _join_pieces(yielded: list[Any], signature: Signature) -> Any:
    """What a generator yielded, with neighbouring texts in one text and neighbouring bytes in one blob."""
    if not yielded:
        return {str: "", bytes: b""}.get(find_result_annotation(signature), yielded)
    if not all(isinstance(item, ContentPart | str | bytes) for item in yielded):
        return yielded
    made: list[Any] = []
    for kind, run in groupby(yielded, lambda item: next((k for k in (str, bytes) if isinstance(item, k)), None)):
        pieces = list(run)
        made += pieces if kind is None else [kind().join(pieces)]
    return made


def _problem(options: ResourceOptions) -> str | None:
    """What would make a listing or a reading invalid on the wire."""
    size: Any = options.size
    if size is not None and not isinstance(size, int):
        return f"size={size!r} is no number of bytes"
    if options.ttl < 0 or (size or 0) < 0:
        return "ttl and size cannot be negative"
    if not isfinite(options.ttl):
        return f"ttl={options.ttl} is no number of seconds"
    hints = options.annotations or {}
    audience, priority = hints.get("audience", ()), hints.get("priority", 0)
    if isinstance(audience, str) or not set(audience) <= {"user", "assistant"}:
        return 'annotations["audience"] is a list of "user" and "assistant"'
    return None if 0 <= priority <= 1 else 'annotations["priority"] is a number from 0 to 1'


def _values(resource: Resource, values: Params) -> Params:
    # An exploded variable matches a list; a parameter that wants one text gets it back in one piece.
    wanted = {p.name: p.annotation for p in resource.function.signature.parameters}
    return {n: ",".join(v) if wanted.get(n) is str and is_array(v) else v for n, v in values.items()}


def _template(uri: str, where: str) -> UriTemplate:
    from defserve.protocols.mcp.uri_template import UriTemplate

    try:
        return UriTemplate.parse(uri)
    except ValueError as error:
        raise UsageError(
            f"resource template {uri!r}: {error}", where=where, fix="see RFC 6570 for the syntax"
        ) from None


# -- Contents of resources that have a `ttl`, kept until they expire.


MAX_CACHE_BYTES, KEY_BYTES = 16 * 1024 * 1024, 256


class CachedContents(NamedTuple):
    """The contents, as one protocol version shows them, and when they expire."""

    contents: list[Params]
    until: float
    size: int


class ResourceContentsCache:
    """Contents by URI and protocol version. The least recently read go first. From any thread."""

    __slots__ = ("_readings", "_size", "_most", "_clock", "_lock", "changes")

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MAX_CACHE_BYTES) -> None:
        self._readings: dict[tuple[str, str], CachedContents] = {}
        self._size, self._most = 0, most
        self._clock, self._lock = clock, Lock()
        self.changes = 0
        """How often something was forgotten. What was read before that may be out of date."""

    def find_contents(self, uri: str, version: str) -> tuple[list[Params], float] | None:
        """The contents and the seconds until they expire; None if there are none, or they have expired."""
        with self._lock:
            reading = self._drop((uri, version))
            if reading is None or reading.until <= (now := self._clock()):
                return None
            self._add_entry((uri, version), reading)
            return _copy_contents(reading.contents), reading.until - now

    def store_contents(self, uri: str, version: str, contents: list[Params], ttl: float, changes: int) -> None:
        """Keep what a function gave, unless something has been forgotten since `changes` was read."""
        size = KEY_BYTES + len(uri) + sum(len(str(part.get("text") or part.get("blob") or "")) for part in contents)
        with self._lock:
            if changes != self.changes or size > self._most:
                return
            self._drop((uri, version))
            self._add_entry((uri, version), CachedContents(_copy_contents(contents), self._clock() + ttl, size))
            while self._size > self._most:
                self._drop(next(iter(self._readings)))

    def drop_contents(self, uri: str | None = None) -> None:
        """A resource has changed; without a URI, all have."""
        with self._lock:
            self.changes += 1
            for key in [key for key in self._readings if uri in (None, key[0])]:
                self._drop(key)

    def _add_entry(self, key: tuple[str, str], reading: CachedContents) -> None:
        self._readings[key] = reading
        self._size += reading.size

    def _drop(self, key: Any) -> CachedContents | None:
        reading = self._readings.pop(key, None)
        self._size -= reading.size if reading is not None else 0
        return reading


def _copy_contents(contents: list[Params]) -> list[Params]:
    # A wrapper of the method may change what it passes on.
    return [dict(part) for part in contents]
