"""Somebody else's server under this project's client: opened, listed, and a tool called whose answer is known."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from commands import node
from telling import PLAN, attempt, tell

from defserve.client import Client, ProcessLink

HERE = Path.cwd()
PYTHON = str(Path(PLAN["package"]) / "bin" / "python")
OFFICIAL = "@modelcontextprotocol/server-{0}/dist/index.js"


def everything() -> tuple[list[str], str, dict[str, Any], str]:
    return node(OFFICIAL.format("everything")), "echo", {"message": "hello"}, "hello"


def filesystem() -> tuple[list[str], str, dict[str, Any], str]:
    (HERE / "note.txt").write_text("buy milk", encoding="utf-8")
    command = node(OFFICIAL.format("filesystem"), str(HERE))
    return command, "read_text_file", {"path": str(HERE / "note.txt")}, "buy milk"


def memory() -> tuple[list[str], str, dict[str, Any], str]:
    os.environ["MEMORY_FILE_PATH"] = str(HERE / "memory.jsonl")
    entity = {"name": "Ann", "entityType": "person", "observations": ["stays 2 nights"]}
    return node(OFFICIAL.format("memory")), "create_entities", {"entities": [entity]}, "stays 2 nights"


def git() -> tuple[list[str], str, dict[str, Any], str]:
    subprocess.run(["git", "init", "-q", "-b", "main", str(HERE)], check=True)
    return [PYTHON, "-m", "mcp_server_git"], "git_status", {"repo_path": str(HERE)}, "On branch main"


def time() -> tuple[list[str], str, dict[str, Any], str]:
    asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    return [PYTHON, "-m", "mcp_server_time", "--local-timezone", "UTC"], "convert_time", asked, "21:00"


def fetch() -> tuple[list[str], str, dict[str, Any], str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if self.path == "/robots.txt" else 200)
            self.send_header("content-type", "text/plain")
            self.end_headers()
            self.wfile.write(b"a page of text")

        def log_message(self, format: str, *args: object) -> None: ...

    pages = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=pages.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{pages.server_port}/page"
    return [PYTHON, "-m", "mcp_server_fetch", "--allow-private-ips"], "fetch", {"url": url}, "a page of text"


def sqlite() -> tuple[list[str], str, dict[str, Any], str]:
    program = str(Path(PLAN["package"]) / "bin" / "mcp-server-sqlite")
    return [program, "--db-path", str(HERE / "shop.db")], "read_query", {"query": "SELECT 40 + 2 AS sum"}, "42"


SERVERS = {f.__name__: f for f in (everything, filesystem, memory, git, time, fetch, sqlite)}


async def main() -> None:
    command, tool, arguments, expected = SERVERS[PLAN["server"].partition(",")[0]]()
    async with Client(await ProcessLink.spawn(command[0], command[1:])) as client:
        tell("connect", True)

        async def has_it() -> bool | list[str]:
            names = [listed["name"] for listed in await client.tools()]
            return tool in names or names

        async def answers() -> bool | str:
            said = str(await client.call_raw(tool, arguments))
            return expected in said or said

        async def lists_all() -> bool | str:
            asked = [sys.executable, "-m", "defserve", "list", "--json", "--", *command]
            done = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True)
            return (done.returncode == 0 and tool in done.stdout) or done.stdout + done.stderr

        await attempt("lists", has_it)
        await attempt("lists all", lists_all, seconds=60)
        await attempt("answers", answers)


asyncio.run(main())
