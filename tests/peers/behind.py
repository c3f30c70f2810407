"""A kernel with the shop and servers of other people behind it, as clients meet it: `make peers`, role "kernel"."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conformance.suite_install import node
from tests.peers.packages import Package

SHOP = Path(__file__).with_name("shop.py")
OFFICIAL = "node_modules/@modelcontextprotocol/server-{0}/dist/index.js"
DOUBLE = """
from {module} import {name}
server = {name}("double")
@server.tool()
def double(number: int) -> int:
    "Twice as much."
    return 2 * number
server.run()
"""


def configured(packages: dict[str, Package], folder: Path) -> tuple[Path, dict[str, Any]]:
    """The mgp.toml, and for each prefix a tool with arguments and a text that its answer has."""
    (folder / "note.txt").write_text("buy milk", encoding="utf-8")
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    entity = {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["stays 2 nights"]}
    (folder / "memory.jsonl").write_text(json.dumps(entity), encoding="utf-8")
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}

    def script(name: str, *arguments: str) -> list[str]:
        return [str(node()), str(packages[name].folder / OFFICIAL.format(name)), *arguments]

    def double(name: str, module: str, made: str) -> list[str]:
        return [str(packages[name].program), "-c", DOUBLE.format(module=module, name=made)]

    def program(name: str, *arguments: str) -> list[str]:
        return [str(packages[name].folder / "bin" / f"mcp-server-{name}"), *arguments]

    servers: dict[str, tuple[list[str], str, dict[str, Any], str]] = {
        "everything": (script("everything"), "echo", {"message": "hello"}, "hello"),
        "filesystem": (
            script("filesystem", str(folder)), "read_text_file", {"path": str(folder / "note.txt")}, "buy milk"
        ),
        "memory": (script("memory"), "read_graph", {}, "stays 2 nights"),
        "git": (program("git"), "git_status", {"repo_path": str(folder)}, "On branch main"),
        "time": (program("time", "--local-timezone", "UTC"), "convert_time", noon, "21:00"),
        "fastmcp": (double("fastmcp", "fastmcp", "FastMCP"), "double", {"number": 21}, "42"),
        "official": (double("official", "mcp.server.fastmcp", "FastMCP"), "double", {"number": 21}, "42"),
    }  # fmt: skip
    env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl"), "FASTMCP_CHECK_FOR_UPDATES": "off"}
    entries = [_entry("shop", [sys.executable, str(SHOP)], {}, None)]
    entries += [_entry(prefix, command, env, prefix) for prefix, (command, *_) in servers.items()]
    config = folder / "mgp.toml"
    config.write_text('[kernel]\nname = "desk"\nlevel = "L0"\n' + "".join(entries), encoding="utf-8")
    return config, {
        prefix: [f"{prefix}_{tool}", arguments, said] for prefix, (_, tool, arguments, said) in servers.items()
    }


def command(config: Path) -> list[str]:
    return [sys.executable, "-m", "defserve", "kernel", "--config", str(config)]


def _entry(id: str, command: list[str], env: dict[str, str], prefix: str | None) -> str:
    said: dict[str, Any] = {"id": id, "command": command[0], "args": command[1:]}
    if prefix is not None:
        said["prefix"] = prefix
    variables = "".join(f"\n{name} = {json.dumps(value)}" for name, value in env.items())
    lines = "".join(f"\n{name} = {json.dumps(value)}" for name, value in said.items())
    return f"\n[[servers]]{lines}\n[servers.env]{variables}\n"
