"""The ways from a client to a server: which proxies there are, how each is started, and which of the eras it knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from defserve.errors import PeerGone
from defserve.kernel.control import ask_kernel
from tests.bench.contenders import HttpContender
from tests.bench.environment import ROOT
from tests.bench.http_process import HttpServer
from tests.bench.processes import Launch
from tests.bench.targets import SUBJECT
from tests.waiting import wait_until

HERE: Final = Path(__file__).parent
KINDS: Final = ("stdio", "http")
PLAIN: Final = {"session": "add", "stateless": "add"}
DIRECT: Final = "direct"
FASTMCP: Final = "fastmcp"
MCP_PROXY: Final = "mcp-proxy"
MCP_PROXY_VENV: Final = ROOT / ".bench-venv" / "mcp-proxy"
MCP_PROXY_WANTED: Final = "mcp-proxy>=0.13,<0.14"
PATIENCE: Final = 60.0


class Road(NamedTuple):
    """A running front for one kind of server, and the name that `add` has there in each era it knows."""

    name: str
    kind: str
    server: HttpServer
    tools: dict[str, str]


class Place(NamedTuple):
    """Where a run keeps its files, and how it starts what it measures. `opened` grows when a server is opened."""

    folder: Path
    launch: Launch
    opened: Path

    def backend(self) -> HttpContender:
        """The server at an address."""
        return HttpContender(DIRECT, HERE / "backend.py", (str(self.opened),))

    def command(self) -> list[str]:
        """The same server as a child on stdio."""
        return [str(self.launch.python), str(HERE / "backend.py"), "stdio:", str(self.opened)]

    def conversations(self) -> int:
        """How many were ever opened with a server."""
        return self.opened.stat().st_size if self.opened.exists() else 0

    def kernel(self, name: str, *entries: str) -> HttpContender:
        """A kernel of these entries."""
        config = self.config(name)
        config.write_text("\n".join(entries))
        return HttpContender(SUBJECT, HERE / "kernel_proxy.py", (str(config),))

    def config(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def child_entry(self, id: str, more: str = "") -> str:
        program, *words = self.command()
        paths = json.dumps(self.launch.environment["PYTHONPATH"])
        return (
            f'[[servers]]\nid = "{id}"\nprefix = "{id}"\ncommand = {json.dumps(program)}\nargs = {json.dumps(words)}\n'
            f"{more}\n[servers.env]\nPYTHONPATH = {paths}\n"
        )


def url_entry(id: str, url: str) -> str:
    return f'[[servers]]\nid = "{id}"\nprefix = "{id}"\nurl = "{url}"\n'


def url_of(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}/mcp"


def roads(stack: ExitStack, place: Place) -> Iterator[Road]:
    """Start them all. They end with the stack."""
    older_python = _mcp_proxy_python()
    direct = stack.enter_context(HttpServer(place.backend(), place.launch))
    # Nobody vouches for a stateless client here, and only an operator may let such ones share a child.
    ours = {"session": "own_add", "stateless": "shared_add"}
    entries = {
        "stdio": (place.child_entry("own"), place.child_entry("shared", 'per = "shared"')),
        "http": (url_entry("own", url_of(direct)), url_entry("shared", url_of(direct))),
    }
    targets = {"stdio": place.command(), "http": [url_of(direct)]}
    for kind in KINDS:
        yield Road(DIRECT, kind, direct, PLAIN)
        kernel = stack.enter_context(HttpServer(place.kernel(kind, *entries[kind]), place.launch))
        wait_connected(place.config(kind), 2)
        yield Road(SUBJECT, kind, kernel, ours)
        fastmcp = HttpContender(FASTMCP, HERE / "fastmcp_proxy.py", tuple(targets[kind]))
        yield Road(FASTMCP, kind, stack.enter_context(HttpServer(fastmcp, place.launch)), PLAIN)
    if older_python is not None:
        other = HttpContender(MCP_PROXY, HERE / "mcp_proxy_proxy.py", tuple(targets["stdio"]))
        launch = place.launch._replace(python=older_python)
        yield Road(MCP_PROXY, "stdio", stack.enter_context(HttpServer(other, launch)), {"session": "add"})


def wait_connected(config: Path, count: int) -> None:
    """Wait until a kernel is connected with so many servers. Raises TimeoutError."""
    wait_until(lambda: _connected(config) >= count, PATIENCE)


def _connected(config: Path) -> int:
    try:
        return sum(row["state"] == "connected" for row in ask_kernel(config, {"verb": "ps"}))
    except PeerGone:
        return 0


def _mcp_proxy_python() -> Path | None:
    python = MCP_PROXY_VENV / "bin" / "python"
    stamp = MCP_PROXY_VENV / "requirements.txt"
    if python.exists() and stamp.exists() and stamp.read_text() == MCP_PROXY_WANTED:
        return python
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([sys.executable, "-m", "venv", MCP_PROXY_VENV], check=True)
        subprocess.run([*pip, MCP_PROXY_WANTED], check=True)
    except subprocess.CalledProcessError as error:
        print(f"mcp-proxy is left out: {error}", file=sys.stderr)
        return None
    stamp.write_text(MCP_PROXY_WANTED)
    return python
