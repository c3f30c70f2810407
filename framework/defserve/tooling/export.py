"""Documents about a server, made from what it lists: a catalogue, JSON Schemas, an entry of `mgp.toml`.

They are made from JSON alone, so they work for any server that answers `tools/list`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from defserve.client.known_clients import check_server_id
from defserve.core.json_values import is_array, is_mapping
from defserve.errors import UsageError
from defserve.server.openapi_document import get_input_schema, get_tool_tags, make_examples


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
    tags, schema = get_tool_tags(tool), get_input_schema(tool)
    return {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "inputSchema": schema,
        "tags": tags,
        "examples": make_examples(schema),
        "metadata": {
            "category": tags[0] if tags else "general",
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


def collect_tool_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
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


# -- The entry of a server in `mgp.toml` (MGP §15.2): what a kernel knows about it before it connects.


def format_mgp_entry(
    info: Mapping[str, Any],
    mgp: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    url: str = "",
    env: Sequence[str] = (),
) -> str:
    """The entry as TOML. `mgp` is what the server says at `initialize`; if it is empty, the section is left out.

    `env` names the variables that the server needs. The kernel fills them in. Raises UsageError for a server or a
    variable that cannot have its name there.
    """
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {name[:60]!r} is not the name of a variable", fix="write --env NAME")
    sections: dict[str, Mapping[str, Any]] = {
        "[[servers]]": {
            "id": check_server_id(str(mgp.get("server_id") or info.get("name") or "server")),
            **({"url": url} if url else {"command": command[0], "args": list(command[1:])}),
            "transport": "http" if url else "stdio",
        },
        "[servers.mgp]": {
            name: mgp[name] for name in ("extensions", "permissions_required", "trust_level") if name in mgp
        },
        "[servers.env]": {name: f"${{{name}}}" for name in env},
    }
    written = [
        "\n".join([heading, *(f"{name} = {toml_value(value)}" for name, value in members.items())])
        for heading, members in sections.items()
        if members
    ]
    return "\n\n".join(written) + "\n"


def toml_value(value: Any) -> str:
    """A text, or a list of texts, as TOML. A text may also stand before the `=`."""
    if is_array(value):
        return f"[{', '.join(map(toml_value, value))}]"
    # A JSON string is a TOML string, except for the one control character that JSON does not escape.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
