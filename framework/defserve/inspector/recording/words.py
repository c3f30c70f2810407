"""What a message is about, in a word or two. Texts of a server are without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.fields import Json, object_of
from defserve.redaction import redact_text
from defserve.wire.jsonvalue import is_array

LONGEST: Final = 80
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG: Final = "notifications/message"

LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "tools/list": ("tools", "tool"),
    "resources/list": ("resources", "resource"),
    "resources/templates/list": ("resourceTemplates", "template"),
    "prompts/list": ("prompts", "prompt"),
    "roots/list": ("roots", "root"),
}


def about(message: Json) -> str:
    """A request or a notice: the tool, the URI, the text that it carries. An error: its message."""
    params = object_of(message.get("params"))
    method = message.get("method")
    if method == PROGRESS:
        return _shown(_progress(params))
    if method == LOG:
        return _shown(f"{params.get('level')}: {_text(params.get('data'))}")
    if isinstance(name := params.get("name"), str) and name:
        return name[:LONGEST]
    if isinstance(reference := object_of(params.get("ref")).get("name"), str):
        return reference[:LONGEST]
    found: Any = params.get("uri") or params.get("message") or params.get("reason") or params.get("data")
    if found is None and "error" in message:
        found = object_of(message.get("error")).get("message")
    if found is None and (server := client_or_server(params, "clientInfo")):
        return _shown(server)
    return _shown(found) if isinstance(found, str) else ""


def about_answer(method: str, result: Json) -> str:
    """What a result tells about its request, where the request itself says nothing."""
    if method in LISTS:
        name, one = LISTS[method]
        items = result.get(name)
        count = len(items) if is_array(items) else 0
        return f"{count} {one if count == 1 else f'{one}s'}" + (", and more" if result.get("nextCursor") else "")
    if method == "initialize":
        return _shown(client_or_server(result, "serverInfo"))
    if method == "server/discover":
        return _shown(client_or_server(result, "serverInfo") or _versions(result))
    return ""


def client_or_server(told: Json, which: str) -> str:
    """Who speaks: name, version, and the version of the protocol."""
    info = object_of(told.get(which))
    words = " ".join(str(info[name]) for name in ("name", "version") if name in info)
    return ", ".join(each for each in (words, str(told.get("protocolVersion") or "")) if each)


def _versions(result: Json) -> str:
    versions = result.get("supportedVersions")
    return ", ".join(map(str, versions)) if is_array(versions) else ""


def _progress(params: Json) -> str:
    done, total, text = params.get("progress"), params.get("total"), params.get("message")
    share = f"{_number(done)} of {_number(total)}" if isinstance(total, int | float) else _number(done)
    return f"{share}, {text}" if isinstance(text, str) and text else share


def _number(value: Any) -> str:
    try:
        return f"{value:g}" if isinstance(value, int | float) else str(value)
    except OverflowError:  # an integer that no float can hold
        return str(value)


def _text(data: Any) -> str:
    if isinstance(data, str):
        return data
    told = object_of(data)
    return str(told.get("message") or told.get("msg") or (", ".join(told) if told else data))


def _shown(text: str) -> str:
    shown = redact_text(text[:512], limit=512)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
