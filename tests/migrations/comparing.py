"""What two servers answered, side by side: every difference, as one line that names where it is.

Some things differ by design, and are made equal first; each such step says why. `differences.py` has the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.binding.signature import ParsedDocstring
from tests.migrations.asking import Answers, Params, Question

# What a schema says besides which values it allows. Pydantic writes titles; we put what the docstring says of arguments
# there; unknown arguments are refused here.
_UNCOMPARED: Final = frozenset("title $schema $defs x-fastmcp-wrap-result description additionalProperties".split())


def compare(before: Answers, again: Answers, after: Answers, questions: list[Question]) -> Iterator[str]:
    """The differences between a server and its migrated self. `again` is the server, asked a second time."""
    for kind in ("tools", "resources", "templates", "prompts"):
        yield from _compare_lists(kind, before.lists[kind], after.lists[kind])
    for question in questions:
        one, two, other = (each.replies.get(question.title) for each in (before, again, after))
        if one is None or two is None or other is None or "silence" in one:
            continue
        if _has_failed(one) != _has_failed(other):
            yield f"{question.title}: {_describe_outcome(one)}, now {_describe_outcome(other)}"
        # What differs from one run to the next cannot be compared: times, ids, the order of a set. Nor can the words
        # about arguments that do not fit, which are ours by design.
        elif not question.is_wrong and _content(one) == _content(two) and _is_changed(one, other):
            yield f"{question.title}: {_shorten(_content(one))}, now {_shorten(_content(other))}"


def _compare_lists(kind: str, before: list[Params], after: list[Params]) -> Iterator[str]:
    key = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}[kind]
    old, new = ({each[key]: each for each in items} for items in (before, after))
    for name in old.keys() | new.keys():
        if name not in new or name not in old:
            yield f"{kind} {name}: {'lost' if name in old else 'new'}"
            continue
        for part, was, now in _compared_parts(old[name], new[name]):
            if was != now:
                yield f"{kind} {name}: {part} {_shorten(was)}, now {_shorten(now)}"


def _compared_parts(old: Params, new: Params) -> Iterator[tuple[str, Any, Any]]:
    yield "description", _plain_text(old.get("description")), _plain_text(new.get("description"))
    # Theirs say text/plain where nothing is written; ours says nothing.
    yield "mimeType", *(None if each.get("mimeType") == "text/plain" else each.get("mimeType") for each in (old, new))
    yield "arguments", _arguments(old), _arguments(new)
    was, now = simplify_schema(old.get("inputSchema") or {}), simplify_schema(new.get("inputSchema") or {})
    yield "required", sorted(was.pop("required", [])), sorted(now.pop("required", []))
    old_properties, new_properties = was.get("properties") or {}, now.get("properties") or {}
    for name in sorted(old_properties.keys() | new_properties.keys()):
        yield f"argument {name}", old_properties.get(name), new_properties.get(name)


def _arguments(item: Params) -> list[tuple[str, bool]]:
    return sorted((each["name"], bool(each.get("required"))) for each in item.get("arguments") or [])


def _plain_text(text: str | None) -> str:
    """A description without the sections on parameters and results: those are in the schema, where clients look."""
    return " ".join((ParsedDocstring(text).description or "").split())


def simplify_schema(schema: Any, definitions: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A schema in one of the ways to write it: which values it allows, and which of them is the default."""
    if isinstance(schema, list):
        return [simplify_schema(each, definitions, depth) for each in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = definitions if definitions is not None else schema.get("$defs") or {}
    if isinstance(reference := schema.get("$ref"), str) and depth < 8:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = definitions.get(reference.rpartition("/")[2], {})
        return simplify_schema({**target, **beside}, definitions, depth + 1)
    simple: Params = {}
    for key, value in schema.items():
        if key == "properties" and value:
            simple[key] = {name: simplify_schema(each, definitions, depth + 1) for name, each in value.items()}
        elif key not in {"properties", *_UNCOMPARED} and not (key == "default" and value is None):
            simple[key] = simplify_schema(value, definitions, depth + 1)
    if isinstance(options := simple.pop("anyOf", None), list):
        if all(isinstance(each, dict) and each.keys() == {"type"} for each in options):
            simple["type"] = sorted({kind for each in options for kind in each["type"]})
        else:
            simple["anyOf"] = sorted(options, key=lambda each: json.dumps(each, sort_keys=True))
    kinds = simple.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    # `city: str = None` allows null here, as it means to.
    simple["type"] = sorted({*kinds, "null"} if "default" in schema and schema["default"] is None else kinds)
    if "const" in simple:
        simple["enum"] = [simple.pop("const")]
    if "enum" in simple or not simple["type"]:
        del simple["type"]
    return simple


def _has_failed(reply: Params) -> bool:
    return "result" not in reply or reply["result"].get("isError") is True


def _is_changed(before: Params, after: Params) -> bool:
    """Whether there is something else to read. The text of an unexpected exception is never shown here."""
    if _has_failed(after) and re.search(r"internal error \(id [0-9a-f]+\)", str(_content(after))):
        return False
    return _content(before) != _content(after)


def _describe_outcome(reply: Params) -> str:
    return f"{'failed' if _has_failed(reply) else 'done'} ({_shorten(_content(reply))})"


def _content(reply: Params) -> Any:
    """What a model, or a person, gets to read."""
    if "silence" in reply:
        return reply["silence"]
    if "error" in reply:
        return _strip_prefix(reply["error"]["message"])
    result = reply["result"]
    if "messages" in result:
        return [(each["role"], _block(each["content"])) for each in result["messages"]]
    blocks = [_block(each) for each in result.get("content") or result.get("contents") or []]
    return [item for block in blocks for item in _items(block)]


def _items(block: Any) -> list[Any]:
    """A list is one text here; theirs has a text for each of its items."""
    try:
        items = json.loads(block) if isinstance(block, str) and block[:1] == "[" else None
    except ValueError:
        items = None
    if items is None:
        return [block]
    return [item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in items]


def _block(block: Params) -> Any:
    if "text" in block:
        return _strip_prefix(_as_json(block["text"]))
    return {key: value for key, value in block.items() if key not in ("annotations", "_meta")}


def _as_json(text: str) -> Any:
    """Some write JSON with blanks in it."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _strip_prefix(text: str) -> str:
    """The SDK says before an error's text which tool has failed."""
    return re.sub(r"^(?:Error (?:executing|calling) tool '?\S+?'?: |Error reading resource '?\S+?'?: )", "", text)


def _shorten(value: Any, limit: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return repr(text if len(text) <= limit else f"{text[:limit]}…")
