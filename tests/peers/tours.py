"""What is used of each server in a feature that several servers have: its names there, and what has to be seen."""

from __future__ import annotations

from typing import Any, TypeAlias

Step: TypeAlias = dict[str, Any]
"""A tool with `arguments`, a `uri`, a `prompt` or a `ref`; what comes of it `says` something."""
Tour: TypeAlias = dict[str, Step]
"""Feature → step, in one server."""

ROOT = "file:///desk"


def shop(root: str) -> Tour:
    return {
        "templates": {"template": "note://{name}", "uri": "note://milk", "says": "buy milk"},
        "completion": _completion("debate", "topic", "ta", ["tables", "tabs"]),
        "subscriptions": {"uri": "text://welcome", "tool": "decorate", "arguments": {}},
        "list changed": {"tool": "invite", "arguments": {}, "kind": "prompts"},
        "logs": _tool("clean", {}, "the shop is clean"),
        "roots": _tool("places", {}, root),
        "cancellation": {"tool": "wait", "asks": "gave_up"},
    }


def desk(prefix: str) -> Tour:
    """A server of somebody else's framework: see `servers/`."""
    return {
        "each call": _tool(f"{prefix}_double", {"number": 21}, "42"),
        "each resource": {"uri": f"desk://{prefix}/lamp", "says": "it is on"},
        "templates": {
            "template": f"desk://{prefix}/drawers/{{number}}", "uri": f"desk://{prefix}/drawers/3", "says": "drawer 3"
        },
        "each prompt": {"prompt": f"{prefix}_letter", "arguments": {"to": "Ann"}, "says": "Write to Ann."},
        "completion": _completion(f"{prefix}_letter", "to", "An", ["Ann", "Anton"]),
        "list changed": {"tool": f"{prefix}_add_drawer", "arguments": {}, "kind": "tools"},
        "logs": _tool(f"{prefix}_clean", {}, "the desk is clean"),
        "each progress": _tool(f"{prefix}_steps", {}, [1, 2, 3]),
        "each elicitation": _tool(f"{prefix}_greet", {}, "hello Ann"),
        "each sampling": _tool(f"{prefix}_summarize", {}, "short"),
        "roots": _tool(f"{prefix}_places", {}, "file://"),
        "cancellation": {"tool": f"{prefix}_wait", "asks": f"{prefix}_gave_up"},
    }  # fmt: skip


def everything(prefix: str) -> Tour:
    """The server of the MCP project that shows every feature."""
    text = f"demo://{prefix}/resource/dynamic/text"
    gzip = {"name": "note.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
    return {
        "each call": _tool(f"{prefix}_echo", {"message": "hello"}, "hello"),
        "each resource": {"uri": f"demo://{prefix}/resource/static/document/features.md", "says": "Features"},
        "templates": {"template": f"{text}/{{resourceId}}", "uri": f"{text}/7", "says": "Resource 7"},
        "each prompt": {"prompt": f"{prefix}_args-prompt", "arguments": {"city": "Oslo"}, "says": "Oslo"},
        "completion": _completion(f"{prefix}_completable-prompt", "department", "S", ["Sales", "Support"]),
        "subscriptions": {"uri": f"{text}/1", "tool": f"{prefix}_toggle-subscriber-updates", "arguments": {}},
        "list changed": {
            "tool": f"{prefix}_gzip-file-as-resource", "arguments": gzip, "kind": "resources", "says": "note.gz"
        },
        "logs": _tool(f"{prefix}_toggle-simulated-logging", {}, "level"),
        "each progress": _tool(f"{prefix}_trigger-long-running-operation", {"duration": 0.3, "steps": 3}, [1, 2, 3]),
        "each elicitation": _tool(f"{prefix}_trigger-elicitation-request", {}, "Ann"),
        "each sampling": _tool(f"{prefix}_trigger-sampling-request", {"prompt": "Summarize it."}, "short"),
        "roots": _tool(f"{prefix}_get-roots-list", {}, "file://"),
    }  # fmt: skip


def tools_only(name: str, arguments: dict[str, Any], says: str) -> Tour:
    return {"each call": _tool(name, arguments, says)}


def by_feature(tours: dict[str, Tour]) -> dict[str, dict[str, Step]]:
    """Feature → server → step."""
    features = sorted({feature for tour in tours.values() for feature in tour})
    return {feature: {name: tour[feature] for name, tour in tours.items() if feature in tour} for feature in features}


def _tool(name: str, arguments: dict[str, Any], says: Any) -> Step:
    return {"tool": name, "arguments": arguments, "says": says}


def _completion(prompt: str, argument: str, value: str, says: list[str]) -> Step:
    return {"ref": {"type": "ref/prompt", "name": prompt}, "argument": argument, "value": value, "says": says}
