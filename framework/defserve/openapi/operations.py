"""The operations of a document: which are chosen, what each may do, its parameters, body, responses, and its name."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Any, Final, TypeAlias

from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError
from defserve.openapi.documents import DocumentReferences
from defserve.protocols.mgp.security import Security

HTTP_METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
MAX_OPERATIONS: Final = 5_000
"""Operations of one document. GitHub's has 1,200."""


_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
PATH_VARIABLE_PATTERN: Final = re.compile(r"\{([^{}/]+)\}")


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
    in_path = PATH_VARIABLE_PATTERN.findall(path)
    for name in in_path:  # a variable that the document forgot to declare is a text
        named.setdefault(
            ("path", name), OperationParameter(name, "path", {"type": "string"}, True, "", "simple", False, False)
        )
    for (place, name), parameter in named.items():
        if place != "path" or name in in_path:
            yield parameter


def _parameter(references: DocumentReferences, given: dict[str, Any]) -> OperationParameter | None:
    name, place = given.get("name"), given.get("in")
    if not isinstance(name, str) or not name or not isinstance(place, str) or place not in _STYLES:
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


def is_operation_included(
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


# -- Names that models can use: of tools and of their arguments. Unique, at most 64 characters, readable.


_NOISE: Final = frozenset({"controller", "api", "v1", "v2", "v3", "rest"})
_VERSION: Final = re.compile(r"v[0-9]+")


def name_operations(operations: Sequence[Operation]) -> list[str]:
    """A name for each operation, all different. Operations that share one are told apart by what differs."""
    first = [make_preferred_name(operation) for operation in operations]
    shared = {name for name, uses in Counter(first).items() if uses > 1}
    routes = Counter((operation.path, operation.id) for operation in operations)
    taken = {name for name in first if name not in shared}
    numbers: dict[str, Iterator[int]] = {}
    found: list[str] = []
    for operation, name in zip(operations, first, strict=True):
        if name in shared:
            is_of_many = routes[operation.path, operation.id] > 1 and _without_route(operation) != operation.id
            own = join_name_words(_with_method(operation, split_name_words(name))) if is_of_many else ""
            name = own if own and own not in taken else _free(operation, name, taken, numbers)
            taken.add(name)
        found.append(name)
    return found


def make_preferred_name(operation: Operation) -> str:
    """The name that an operation would have if it were alone."""
    found = drop_repeated_words(split_name_words(_without_route(operation))) if operation.id else []
    if len(found) > 2 and found[0] not in ("get", "list"):
        found = [word for word in found if word != "controller"]
    return join_name_words(found) or join_name_words(from_route(operation)) or operation.method


def _without_route(operation: Operation) -> str:
    """The `operationId` without the path and the method that FastAPI and others add to it.

    If a function serves several methods, FastAPI gives all of them one id, with a method that changes between starts.
    """
    id = operation.id or ""
    for method in HTTP_METHODS:
        route = re.sub(r"\W", "_", f"{operation.path}_{method}")
        if id.lower().endswith(route.lower()) and len(id) > len(route):
            return id[: -len(route)]
    return id


def from_route(operation: Operation) -> list[str]:
    """GET /users/{id}/posts → get, users, posts, by, id."""
    static: list[str] = []
    variables: list[str] = []
    for segment in operation.path.partition("?")[0].split("/"):
        if segment.startswith("{"):
            variables += [segment.strip("{}")]
        elif segment and not _VERSION.fullmatch(segment) and segment.lower() not in _NOISE:
            static += split_name_words(segment)
    ends_in_variable = operation.path.rstrip("/").endswith("}")
    by = ["by", *split_name_words(variables[-1])] if variables and ends_in_variable else []
    return drop_repeated_words([operation.method, *static, *by])


def _with_method(operation: Operation, own: list[str]) -> list[str]:
    return [operation.method, *own] if operation.method not in own else []


_MORE: Final[tuple[Callable[[Operation, list[str]], list[str]], ...]] = (
    lambda operation, own: [*split_name_words(operation.tags[0]), *own] if operation.tags else [],
    _with_method,
    lambda operation, own: from_route(operation),
    lambda operation, own: (
        [*own, "by", *split_name_words(operation.path.rpartition("{")[2].partition("}")[0])]
        if "{" in operation.path
        else []
    ),
    lambda operation, own: [operation.method, *split_name_words(operation.path)],
)
"""How operations of one name are told apart, in this order."""


def _free(operation: Operation, name: str, taken: set[str], numbers: dict[str, Iterator[int]]) -> str:
    """A name that is not taken. `numbers` goes on counting where the last operation of that name stopped."""
    if name not in taken:
        return name
    own = split_name_words(name)
    for more in _MORE:
        other = join_name_words(drop_repeated_words(more(operation, own)))
        if other and other not in taken:
            return other
    tails = (f"_{number}" for number in numbers.setdefault(name, count(2)))
    numbered = (join_name_words(own, MAX_NAME - len(tail)) + tail for tail in tails)
    return next(other for other in numbered if other not in taken)


# -- The names of arguments. Model APIs take letters, digits, `_`, `.` and `-`, at most 64 of them.


_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def make_argument_name(name: str, place: str, taken: set[str]) -> str:
    """`filter[name]` → `filter_name`. If a name is taken, its place is put before it: `query_id`."""
    plain = _ODD.sub("_", name).strip("_")[: MAX_NAME - 12] or place
    candidates = chain((plain, f"{place}_{plain}"), (f"{plain}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


# -- Identifiers taken apart into words, and put together again.


MAX_NAME: Final = 64
"""Several model APIs take no longer names."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+")


def split_name_words(text: str) -> list[str]:
    """`UsersController_findAll` → users, controller, find, all."""
    plain = unicodedata.normalize("NFKD", text[:500]).encode("ascii", "ignore").decode()
    return [word.lower() for part in _SPLIT.split(plain) for word in _CAMEL.split(part) if word]


def drop_repeated_words(found: Sequence[str]) -> list[str]:
    """Without a run of words that follows itself: navigate, post, navigate, post → navigate, post."""
    kept = list(found)
    size = len(kept) // 2
    while size:
        at = 0
        while at + 2 * size <= len(kept):
            if kept[at : at + size] == kept[at + size : at + 2 * size]:
                del kept[at + size : at + 2 * size]
            else:
                at += 1
        size = min(size - 1, len(kept) // 2)
    return kept


def join_name_words(found: Sequence[str], most: int = MAX_NAME) -> str:
    """The words as one name, shortened to fit by leaving out words from the middle."""
    kept = list(found)
    while len("_".join(kept)) > most and len(kept) > 2:
        del kept[len(kept) // 2]
    return "_".join(kept)[:most].strip("_")
