"""The tool catalogue: what a registry shows about a server, with examples that can be called as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from defserve.serving.openapi.document import input_schema, tags_of
from defserve.serving.openapi.examples import examples
from defserve.wire.jsonvalue import is_mapping

UNSORTED: Final = "general"


def catalogue(
    info: Mapping[str, Any], tools: Iterable[Mapping[str, Any]], *, author: str = "", generated_at: str | None = None
) -> dict[str, Any]:
    """The catalogue of a server with this `info` and these `tools`.

    A tool's `meta={"category": …, "version": …, "deprecated": …, "author": …}` replaces the defaults: its first tag,
    the server's version, whether it is tagged `deprecated`, and `author`.
    """
    version = str(info.get("version") or "0")
    return {
        "name": str(info.get("name") or ""),
        "version": version,
        "generated_at": generated_at or now(),
        "tools": [_tool(tool, version, author or str(info.get("name") or "")) for tool in tools],
    }


def _tool(tool: Mapping[str, Any], version: str, author: str) -> dict[str, Any]:
    tags, schema = tags_of(tool), input_schema(tool)
    return {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "inputSchema": schema,
        "tags": tags,
        "examples": examples(schema),
        "metadata": {
            "category": tags[0] if tags else UNSORTED,
            "version": version,
            "deprecated": "deprecated" in tags,
            "author": author,
            **_from_meta(tool),
        },
    }


def _from_meta(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the author's `meta=` that belong in a catalogue."""
    meta: Any = tool.get("_meta") or {}
    wanted = {"category": str, "version": str, "deprecated": bool, "author": str}
    return {name: meta[name] for name, kind in wanted.items() if isinstance(meta.get(name), kind)}


def now() -> str:
    """The time in RFC 3339. `SOURCE_DATE_EPOCH` fixes it for reproducible builds."""
    from datetime import UTC, datetime

    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON Schemas of every tool: `input`, and `output` if it has one."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        tool["name"]: {
            side: {**draft, **tool[member]}
            for side, member in (("input", "inputSchema"), ("output", "outputSchema"))
            if is_mapping(tool.get(member))
        }
        for tool in tools
    }
