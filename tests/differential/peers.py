"""The servers that are compared. Each answers a request with one line that says what it took it for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from defserve.limits import Limits
from defserve.serve.network import serve_sockets
from tests.waiting import until

OURS = "defserve"

_NGINX = """
worker_processes 1; daemon off; error_log {folder}/error.log crit; pid {folder}/pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_header_timeout 2s; client_body_timeout 2s; lingering_close off; merge_slashes off;
  server {{ listen 127.0.0.1:{port} reuseport; location / {{ return 200 "$request_method $request_uri -"; }} }}
}}
"""
_NODE = """
const { createHash } = require("node:crypto");
const deadlines = { requestTimeout: 3000, headersTimeout: 2000 };
const server = require("node:http").createServer(deadlines, (request, response) => {
  const hash = createHash("sha256");
  let length = 0;
  request.on("data", (part) => { hash.update(part); length += part.length; });
  request.on("end", () => {
    const line = `${request.method} ${request.url} ${length}:${hash.digest("hex").slice(0, 8)}`;
    response.writeHead(200, { "content-length": Buffer.byteLength(line, "latin1") });
    response.end(line, "latin1");
  });
});
server.listen(PORT, "127.0.0.1", 1024);
"""


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI app that says what was asked for."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    told = b"%d:%b" % (len(body), sha256(body).hexdigest()[:8].encode())
    line = b"%b %b %b" % (scope["method"].encode(), target, told)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(line))]})
    await send({"type": "http.response.body", "body": line})


@asynccontextmanager
async def start_peers(folder: Path) -> AsyncGenerator[dict[str, int]]:
    """All that are installed, by name, with their ports. Ours is the first."""
    async with AsyncExitStack() as stack:
        ports = {OURS: await stack.enter_async_context(_serve_ours())}
        for parser in ("httptools", "h11"):
            ports[f"uvicorn, {parser}"] = stack.enter_context(_run_uvicorn(folder, parser))
        if (nginx := shutil.which("nginx")) is not None:
            ports["nginx"] = stack.enter_context(_run_nginx(folder, nginx))
        if (node := shutil.which("node")) is not None:
            ports["Node"] = stack.enter_context(_run_node(folder, node))
        for port in ports.values():
            await until(lambda port=port: _is_open(port))
        yield ports


@asynccontextmanager
async def _serve_ours() -> AsyncGenerator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        limits = Limits(connections=5_000)
        async with serve_sockets(echo, limits, [listening]):
            yield listening.getsockname()[1]


@contextmanager
def _run_uvicorn(folder: Path, parser: str) -> Generator[int]:
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.differential.peers:echo", "--http", parser, "--port", str(port)]
    options = ["--log-level", "critical", "--lifespan", "off", "--timeout-keep-alive", "2", "--ws", "none"]
    with _run([*command, *options], folder / f"uvicorn-{parser}.log"):
        yield port


@contextmanager
def _run_nginx(folder: Path, program: str) -> Generator[int]:
    port, settings = _free_port(), folder / "nginx.conf"
    settings.write_text(_NGINX.format(folder=folder, port=port))
    with _run([program, "-p", str(folder), "-c", str(settings), "-e", str(folder / "start.log")], folder / "nginx.log"):
        yield port


@contextmanager
def _run_node(folder: Path, program: str) -> Generator[int]:
    port, script = _free_port(), folder / "echo.js"
    script.write_text(_NODE.replace("PORT", str(port)))
    with _run([program, str(script)], folder / "node.log"):
        yield port


@contextmanager
def _run(command: list[str], log: Path) -> Generator[None]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
