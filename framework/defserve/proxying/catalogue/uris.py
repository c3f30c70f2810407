"""The prefix in URIs inside what a backend sends. Without a prefix nothing is touched."""

from __future__ import annotations

from typing import Any

from defserve.host.fields import Json
from defserve.protocols.mcp.apps.offer import MIME_TYPE
from defserve.protocols.mcp.apps.page import with_prefix
from defserve.protocols.mcp.prefixes import Prefix
from defserve.wire.jsonvalue import is_array, is_object

# Where the listing of a tool names the resource that shows it: `_meta.ui.resourceUri`, or the older flat member.
UI, RESOURCE_URI, FLAT_UI = "ui", "resourceUri", "ui/resourceUri"


def in_tool_result(result: Json, prefix: Prefix) -> Json:
    """`CallToolResult`: links and embedded resources in its content."""
    content = result.get("content")
    if prefix.text and is_array(content):
        for block in content:
            # Most blocks are texts, and this is done for every call.
            if is_object(block) and block.get("type") != "text":
                _in_block(block, prefix)
    return result


def in_prompt_result(result: Json, prefix: Prefix) -> Json:
    """`GetPromptResult`: links and embedded resources in its messages."""
    if prefix.text:
        for message in _objects(result.get("messages")):
            content = message.get("content")
            for block in _objects(content if isinstance(content, list) else [content]):
                _in_block(block, prefix)
    return result


def in_contents(result: Json, prefix: Prefix) -> Json:
    """`ReadResourceResult`. A view with our bridge finds its tools under the prefix."""
    if prefix.text:
        for content in _objects(result.get("contents")):
            _rename(content, "uri", prefix)
            if content.get("mimeType") == MIME_TYPE and isinstance(content.get("text"), str):
                content["text"] = with_prefix(content["text"], prefix)
    return result


def in_listed_tool(tool: Json, prefix: Prefix) -> Json:
    """A tool of a list: the resource that shows it. The given objects are not changed."""
    meta = tool.get("_meta")
    if not prefix.text or not isinstance(meta, dict):
        return tool
    renamed: Json = {**meta}
    _rename(renamed, FLAT_UI, prefix)
    shown: Any = renamed.get(UI)
    if isinstance(shown, dict):
        renamed[UI] = {**shown}
        _rename(renamed[UI], RESOURCE_URI, prefix)
    return {**tool, "_meta": renamed}


def in_skill(entry: Json, prefix: Prefix) -> Json:
    """A skill of a list: its own URI and those of its files. The given objects are not changed."""
    if not prefix.text:
        return entry
    renamed = {**entry}
    _rename(renamed, "uri", prefix)
    if is_array(files := entry.get("resources")):
        renamed["resources"] = [{**file} if is_object(file) else file for file in files]
        in_directory(renamed, prefix)
    return renamed


def in_directory(result: Json, prefix: Prefix) -> Json:
    """`ReadDirectoryResult`: what a folder of a skill holds."""
    if prefix.text:
        for child in _objects(result.get("resources")):
            _rename(child, "uri", prefix)
    return result


def _in_block(block: Json, prefix: Prefix) -> None:
    kind = block.get("type")
    if kind == "resource_link":
        _rename(block, "uri", prefix)
    elif kind == "resource" and isinstance(block.get("resource"), dict):
        _rename(block["resource"], "uri", prefix)


def _rename(value: Json, member: str, prefix: Prefix) -> None:
    if isinstance(value.get(member), str):
        value[member] = prefix.uri(value[member])


def _objects(value: Any) -> list[Json]:
    return [item for item in value if is_object(item)] if is_array(value) else []
