"""Whether the items of a server's lists have the types that a command reads. A wrong one is named, not met later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from defserve.errors import PeerError
from defserve.wire.jsonvalue import is_array, is_object

SHOWN: Final = 80
TYPES: Final[Mapping[type, str]] = {str: "a string", dict: "an object", list: "a list"}
# member -> (its type, whether null counts as none)
MEMBERS: Final[Mapping[str, tuple[type, bool]]] = {
    "name": (str, False),
    "uri": (str, False),
    "uriTemplate": (str, False),
    "title": (str, True),
    "description": (str, True),
    "mimeType": (str, True),
    "inputSchema": (dict, False),
    "outputSchema": (dict, True),
    "annotations": (dict, True),
    "_meta": (dict, True),
    "arguments": (list, True),
}
NAMED: Final[Mapping[str, str]] = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}


def checked(kind: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a list, unchanged. Raises PeerError for one that has a member of a wrong type."""
    for number, item in enumerate(items):
        if (problem := next(iter(_problems(kind, item)), None)) is not None:
            name = item.get(NAMED[kind])
            which = repr(name[:SHOWN]) if isinstance(name, str) else f"number {number + 1}"
            raise PeerError(f"the server's list of {kind} is wrong: in {which}, {problem}")
    return items


def _problems(kind: str, item: dict[str, Any]) -> Iterable[str]:
    if NAMED[kind] not in item:
        yield f"{NAMED[kind]} is missing"
    for member, (type, is_optional) in MEMBERS.items():
        value = item.get(member)
        if member in item and not (isinstance(value, type) or (is_optional and value is None)):
            yield f"{member} is not {TYPES[type]}"
    schema = item.get("inputSchema")
    if is_object(schema):
        yield from _schema_problems(schema)
    for argument in item.get("arguments") or ():
        if not (is_object(argument) and isinstance(argument.get("name"), str)):
            yield "an argument has no name"


def _schema_problems(schema: dict[str, Any]) -> Iterable[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None and not is_object(properties):
        yield "properties of inputSchema is not an object"
    elif not all(is_object(one) or isinstance(one, bool) for one in (properties or {}).values()):
        yield "a property of inputSchema is not a schema"
    if required is not None and not (is_array(required) and all(isinstance(name, str) for name in required)):
        yield "required of inputSchema is not a list of names"
