"""The operations of a document: which are chosen, what each may do, its parameters, body and responses resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError
from defserve.openapi.documents import DocumentReferences
from defserve.protocols.mgp.security import Security

HTTP_METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
MAX_OPERATIONS: Final = 5_000
"""Operations of one document. GitHub's has 1,200."""


_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
PATH_VARIABLE: Final = re.compile(r"\{([^{}/]+)\}")


@dataclass(frozen=True, slots=True)
class OperationParameter:
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
class RequestBody:
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
    parameters: tuple[OperationParameter, ...]
    body: RequestBody | None
    responses: Mapping[str, Any]
    servers: tuple[Any, ...] = ()
    is_public: bool = False
    """It says itself that it needs no credentials."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


def list_operations(references: DocumentReferences) -> Iterator[Operation]:
    """Every operation, in the order of the document. Raises UsageError for a reference that points to nothing."""
    paths = references.root.get("paths")
    count = 0
    for path, given in paths.items() if is_object(paths) else ():
        item = references.resolve_value(given)
        if not is_object(item) or not str(path).startswith("/"):
            continue
        for method in HTTP_METHODS:
            operation = references.resolve_value(item.get(method))
            if is_object(operation):
                count += 1
                if count > MAX_OPERATIONS:
                    raise UsageError(
                        f"the document has more than {MAX_OPERATIONS} operations", fix="cut it down to what you serve"
                    )
                yield _read_operation(references, str(path), method, item, operation)


def _read_operation(
    references: DocumentReferences, path: str, method: str, item: dict[str, Any], found: dict[str, Any]
) -> Operation:
    body = references.resolve_value(found.get("requestBody"))
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


def _parameters(
    references: DocumentReferences, path: str, item: dict[str, Any], found: dict[str, Any]
) -> Iterator[OperationParameter]:
    named: dict[tuple[str, str], OperationParameter] = {}
    for given in (*_list(item.get("parameters")), *_list(found.get("parameters"))):
        parameter = references.resolve_value(given)
        if is_object(parameter) and (read := _parameter(references, parameter)) is not None:
            named[read.place, read.name] = read
    in_path = PATH_VARIABLE.findall(path)
    for name in in_path:  # a variable that the document forgot to declare is a text
        named.setdefault(
            ("path", name), OperationParameter(name, "path", {"type": "string"}, True, "", "simple", False, False)
        )
    for (place, name), parameter in named.items():
        if place != "path" or name in in_path:
            yield parameter


def _parameter(references: DocumentReferences, given: dict[str, Any]) -> OperationParameter | None:
    name, place = given.get("name"), given.get("in")
    if not isinstance(name, str) or not name or place not in _STYLES:
        return None
    style = given.get("style")
    style = style if isinstance(style, str) else _STYLES[place]
    explode = given.get("explode")
    media, schema = None, given.get("schema")
    if is_object(content := given.get("content")) and content:
        media, described = next(iter(content.items()))
        described = references.resolve_value(described)
        schema = described.get("schema") if is_object(described) else None
    return OperationParameter(
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


def _body(references: DocumentReferences, given: dict[str, Any]) -> RequestBody | None:
    content = given.get("content")
    known = (
        {str(media): references.resolve_value(found) for media, found in content.items()} if is_object(content) else {}
    )
    known = {media: found for media, found in known.items() if is_object(found)}
    return RequestBody(known, given.get("required") is True, _text(given.get("description"))) if known else None


def _list(value: Any) -> list[Any]:
    return list(value) if is_array(value) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


# -- Choosing operations: by tag, path, method, `operationId` or tool name.


OperationPattern: TypeAlias = str | Callable[[Operation], bool]
"""`tag:users`, `/users/*`, `GET`, `GET /users/*`, or an operationId or tool name (`list_*`); or a function."""


def matches_pattern(pattern: OperationPattern, operation: Operation, name: str) -> bool:
    """Whether a pattern means an operation, whose tool has this name."""
    if not isinstance(pattern, str):
        return bool(pattern(operation))
    kind, _, rest = pattern.partition(":")
    if kind == "tag":
        return any(fnmatchcase(tag.lower(), rest.strip().lower()) for tag in operation.tags)
    method, _, path = pattern.partition(" ")
    if method.lower() in HTTP_METHODS and (method.isupper() or path.startswith("/")):
        return operation.method == method.lower() and (not path or _is_path_match(path.strip(), operation.path))
    if pattern.startswith("/"):
        return _is_path_match(pattern, operation.path)
    return fnmatchcase(name, pattern) or (operation.id is not None and fnmatchcase(operation.id, pattern))


def _is_path_match(pattern: str, path: str) -> bool:
    # A variable is written in braces in the document; fnmatch knows no braces, only brackets.
    return fnmatchcase(path, pattern.replace("[", "[[]"))


def is_included(
    operation: Operation, name: str, include: Sequence[OperationPattern] | None, exclude: Sequence[OperationPattern]
) -> bool:
    """Whether an operation is served: some pattern of `include` (if there is any) means it, and none of `exclude`."""
    wanted = include is None or any(matches_pattern(pattern, operation, name) for pattern in include)
    return wanted and not any(matches_pattern(pattern, operation, name) for pattern in exclude)


def parse_operation_patterns(given: Any, option: str) -> tuple[OperationPattern, ...]:
    """What `include=` or `exclude=` was given. Raises UsageError for anything but patterns."""
    found: tuple[Any, ...] = (given,) if isinstance(given, str) or callable(given) else tuple(given)
    for pattern in found:
        if not isinstance(pattern, str) and not callable(pattern):
            raise UsageError(
                f"{option}={pattern!r} is not a pattern", fix=f'write {option}=["tag:users", "GET /users/*"]'
            )
    return found


# -- What a tool may do, by the method of its operation: GET is safe, DELETE is dangerous, the rest is moderate.


READING: Final = frozenset({"get", "head", "options"})
IDEMPOTENT_METHODS: Final = READING | {"put", "delete"}

_RISKS: Final[Mapping[str, Any]] = {**dict.fromkeys(READING, "safe"), "delete": "dangerous"}


def choose_operation_security(operation: Operation, name: str, marks: Mapping[OperationPattern, Any]) -> Security:
    """The mark of a tool: the last of `marks` that means it, or else that of its method."""
    given: Any = _RISKS.get(operation.method, "moderate")
    for pattern, mark in marks.items():
        if matches_pattern(pattern, operation, name):
            given = mark
    if isinstance(given, Security):
        return given
    if given not in ("safe", "moderate", "dangerous"):
        raise UsageError(
            f"marks={{…: {given!r}}} is not possible", fix='use "safe", "moderate", "dangerous" or Security(…)'
        )
    return Security(given, effects=() if given == "safe" else ("network",), where=str(operation))


def make_method_hints(operation: Operation) -> dict[str, Any]:
    """MCP's hints that the method tells, besides those that follow from the mark."""
    hints: dict[str, Any] = {"openWorldHint": True}
    if operation.method in ("put", "delete"):
        hints["idempotentHint"] = True
    return hints
