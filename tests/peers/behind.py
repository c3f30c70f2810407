"""A kernel with the shop and servers of other people behind it, as clients meet it: `make peers`, role "kernel"."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conformance.suite_install import node
from tests.peers import tours
from tests.peers.packages import Package
from tests.peers.tours import Tour

SERVERS = Path(__file__).with_name("servers")
OFFICIAL = "node_modules/@modelcontextprotocol/server-{0}/dist/index.js"


def configured(packages: dict[str, Package], folder: Path) -> tuple[Path, dict[str, Any]]:
    """The mgp.toml, and what a plan says of the kernel: the tour, and the client's root."""
    (folder / "note.txt").write_text("buy milk", encoding="utf-8")
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    entity = {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["stays 2 nights"]}
    (folder / "memory.jsonl").write_text(json.dumps(entity), encoding="utf-8")
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    note = {"path": str(folder / "note.txt")}

    def script(name: str, *arguments: str) -> list[str]:
        return [str(node()), str(packages[name].folder / OFFICIAL.format(name)), *arguments]

    def desk(name: str) -> list[str]:
        return [str(packages[name].program), str(SERVERS / f"{name}_desk.py")]

    def module(name: str, *arguments: str) -> list[str]:
        return [str(packages[name].program), "-m", f"mcp_server_{name}", *arguments]

    root = folder.as_uri()
    servers: dict[str, tuple[list[str], Tour]] = {
        "everything": (script("everything"), tours.everything("everything")),
        "filesystem": (
            script("filesystem", str(folder)), tours.tools_only("filesystem_read_text_file", note, "buy milk")
        ),
        "memory": (script("memory"), tours.tools_only("memory_read_graph", {}, "stays 2 nights")),
        "git": (module("git"), tours.tools_only("git_git_status", {"repo_path": str(folder)}, "On branch main")),
        "time": (
            module("time", "--local-timezone", "UTC"), tours.tools_only("time_convert_time", noon, "21:00")
        ),
        "fastmcp": (desk("fastmcp"), tours.desk("fastmcp")),
        "official": (desk("official"), tours.desk("official")),
    }  # fmt: skip
    env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl"), "FASTMCP_CHECK_FOR_UPDATES": "off"}
    entries = [_entry("shop", [sys.executable, str(SERVERS / "shop.py")], {}, None)]
    entries += [_entry(prefix, command, env, prefix) for prefix, (command, _) in servers.items()]
    config = folder / "mgp.toml"
    config.write_text('[kernel]\nname = "desk"\nlevel = "L0"\n' + "".join(entries), encoding="utf-8")
    tour = tours.by_feature({"shop": tours.shop(root), **{name: tour for name, (_, tour) in servers.items()}})
    return config, {"tour": tour, "root": root}


def command(config: Path) -> list[str]:
    return [sys.executable, str(SERVERS / "kernel.py"), str(config)]


def _entry(id: str, command: list[str], env: dict[str, str], prefix: str | None) -> str:
    said: dict[str, Any] = {"id": id, "command": command[0], "args": command[1:]}
    if prefix is not None:
        said["prefix"] = prefix
    variables = "".join(f"\n{name} = {json.dumps(value)}" for name, value in env.items())
    lines = "".join(f"\n{name} = {json.dumps(value)}" for name, value in said.items())
    return f"\n[[servers]]{lines}\n[servers.env]{variables}\n"
