"""The operations of a document, each with its parameters, body and responses resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from defserve.errors import UsageError
from defserve.openapi.documents.references import References
from defserve.wire.jsonvalue import is_array, is_object

METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
MOST: Final = 5_000
"""Operations of one document. GitHub's has 1,200."""

PLACES: Final = ("path", "query", "header", "cookie")
_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
VARIABLE: Final = re.compile(r"\{([^{}/]+)\}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation. With `media`, its value is sent as one text of that type."""

    name: str
    place: str
    schema: Any
    required: bool
    description: str
    style: str
    explode: bool
    allow_reserved: bool
    media: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request: media type → the object that describes it."""

    content: Mapping[str, dict[str, Any]]
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `path` is as the document writes it; `servers` are its own, if it has any."""

    method: str
    path: str
    id: str | None
    summary: str
    description: str
    tags: tuple[str, ...]
    deprecated: bool
    parameters: tuple[Parameter, ...]
    body: Body | None
    responses: Mapping[str, Any]
    servers: tuple[Any, ...] = ()
    is_public: bool = False
    """It says itself that it needs no credentials."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


def operations(references: References) -> Iterator[Operation]:
    """Every operation, in the order of the document. Raises UsageError for a reference that points to nothing."""
    paths = references.root.get("paths")
    count = 0
    for path, given in paths.items() if is_object(paths) else ():
        item = references.resolved(given)
        if not is_object(item) or not str(path).startswith("/"):
            continue
        for method in METHODS:
            operation = references.resolved(item.get(method))
            if is_object(operation):
                count += 1
                if count > MOST:
                    raise UsageError(
                        f"the document has more than {MOST} operations", fix="cut it down to what you serve"
                    )
                yield _read(references, str(path), method, item, operation)


def _read(references: References, path: str, method: str, item: dict[str, Any], found: dict[str, Any]) -> Operation:
    body = references.resolved(found.get("requestBody"))
    servers = found.get("servers") or item.get("servers") or ()
    responses = found.get("responses")
    return Operation(
        method=method,
        path=path,
        id=found["operationId"] if isinstance(found.get("operationId"), str) else None,
        summary=_text(found.get("summary") or item.get("summary")),
        description=_text(found.get("description") or item.get("description")),
        tags=tuple(tag for tag in _list(found.get("tags")) if isinstance(tag, str)),
        deprecated=found.get("deprecated") is True,
        parameters=tuple(_parameters(references, path, item, found)),
        body=_body(references, body) if is_object(body) else None,
        responses=responses if is_object(responses) else {},
        servers=tuple(_list(servers)),
        is_public=found.get("security") == [],
        extra={name: value for name, value in found.items() if name.startswith("x-")},
    )


def _parameters(references: References, path: str, item: dict[str, Any], found: dict[str, Any]) -> Iterator[Parameter]:
    named: dict[tuple[str, str], Parameter] = {}
    for given in (*_list(item.get("parameters")), *_list(found.get("parameters"))):
        parameter = references.resolved(given)
        if is_object(parameter) and (read := _parameter(references, parameter)) is not None:
            named[read.place, read.name] = read
    in_path = VARIABLE.findall(path)
    for name in in_path:  # a variable that the document forgot to declare is a text
        named.setdefault(("path", name), Parameter(name, "path", {"type": "string"}, True, "", "simple", False, False))
    for (place, name), parameter in named.items():
        if place != "path" or name in in_path:
            yield parameter


def _parameter(references: References, given: dict[str, Any]) -> Parameter | None:
    name, place = given.get("name"), given.get("in")
    if not isinstance(name, str) or not name or place not in PLACES:
        return None
    style = given.get("style")
    style = style if isinstance(style, str) else _STYLES[place]
    explode = given.get("explode")
    media, schema = None, given.get("schema")
    if is_object(content := given.get("content")) and content:
        media, described = next(iter(content.items()))
        described = references.resolved(described)
        schema = described.get("schema") if is_object(described) else None
    return Parameter(
        name=name,
        place=place,
        schema=schema if schema is not None else {"type": "string"},
        required=place == "path" or given.get("required") is True,
        description=_text(given.get("description")),
        style=style,
        explode=explode if isinstance(explode, bool) else style == "form",
        allow_reserved=given.get("allowReserved") is True,
        media=media,
    )


def _body(references: References, given: dict[str, Any]) -> Body | None:
    content = given.get("content")
    known = {str(media): references.resolved(found) for media, found in content.items()} if is_object(content) else {}
    known = {media: found for media, found in known.items() if is_object(found)}
    return Body(known, given.get("required") is True, _text(given.get("description"))) if known else None


def _list(value: Any) -> list[Any]:
    return list(value) if is_array(value) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
