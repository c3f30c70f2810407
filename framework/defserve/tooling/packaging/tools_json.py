"""`tools.json`: the tools of the server in a built wheel. The server is only listed, not started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError

TIMEOUT: Final = 60.0


def tools_json(wheel: Path, target: str) -> list[dict[str, Any]]:
    """The tools that the server at `target` in the wheel lists. Raises UsageError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        # The files of the wheel are used, so that a missing file is noticed here and not by a user.
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "defserve", "list", "--json", target]
        environment = {**os.environ, "PYTHONPATH": path}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"the server {target} in {wheel.name} did not list its tools in {TIMEOUT:g} s") from None
    if done.returncode:
        raise UsageError(f"the server {target} in {wheel.name} cannot list its tools:\n{done.stderr.strip()}")
    return [entry(tool) for tool in json.loads(done.stdout)["tools"]]


def entry(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as registries list it: its arguments one by one, and its schema as it is."""
    schema: dict[str, Any] = tool.get("inputSchema") or {}
    properties: dict[str, Any] = schema.get("properties") or {}
    return {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "arguments": [
            {"name": name, "type": str(about.get("type", "any")), "desc": str(about.get("description", ""))}
            for name, about in properties.items()
        ],
        "inputSchema": schema,
    }
