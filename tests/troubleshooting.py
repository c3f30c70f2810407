"""Provoking errors for real: where a user sits, what they type, and how the text reaches them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest
from starlette.testclient import TestClient

from defserve import (
    Code,
    Context,
    PublicUrl,
    Refused,
    Server,
    Shell,
    ShellCommand,
    dangerous,
    moderate,
    sandbox,
)
from defserve.auth import StaticTokens
from defserve.cli import main
from defserve.client.targets import load_server
from defserve.errors import DefserveError
from defserve.sandbox import Layers
from defserve.testing import SyncClient, UnansweredQuestion, UnusedAnswer
from defserve.tooling.packaging import package
from tests.raw import PREFIX, raw
from tests.tooling.packaging.conftest import write_project

FRAMEWORK = Path(__file__).parents[1] / "framework"

HEAD = "from defserve import *\nserver = Server('calc', '1')\n"
TOKEN = "k-long-random-text"
ADD = "@server.tool\ndef add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n"
NAME = "@server.tool\nasync def name(ctx: Context) -> str:\n    return await ctx.ask('Who?', str)\n"
COUNT = """
from pydantic import BaseModel
class Counter(BaseModel):
    value: int = 0
server = Server('count', '1', store='sqlite:///{}')
counting = server.feature_set('counter.count', 'Count')
counting.state(Counter)
@counting.tool
def count(counter: State[Counter]) -> int:
    counter.value += 1
    return counter.value
"""


class Desk:
    """Where a user sits: a folder of their own, and the command line in this process."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.patch, self.capsys = folder, patch, capsys
        patch.setenv("HOME", str(folder / "home"))
        patch.delenv("XDG_CONFIG_HOME", raising=False)

    def types(self, *argv: str) -> str:
        """What `defserve …` prints."""
        main(argv)
        out, err = self.capsys.readouterr()
        return err + out

    def has(self, name: str, text: str = "") -> Desk:
        (self.folder / name).write_text(text, encoding="utf-8")
        return self

    def lacks(self, *modules: str) -> Desk:
        """As if an extra were not installed."""
        for module in modules:
            self.patch.setitem(sys.modules, module, None)
        return self

    def set(self, variable: str, value: str) -> Desk:
        """As if the environment had it."""
        self.patch.setenv(variable, value)
        return self

    def declares(self, text: str) -> str:
        return self.has("server.py", HEAD + text).types("list", "server.py")

    def serves(self, on: str, text: str = ADD) -> str:
        return self.has("server.py", HEAD + text).types("run", "server.py", "--on", on)

    def calls(self, *words: str, text: str = ADD) -> str:
        return self.has("server.py", HEAD + text).types("call", "server.py", *words)


# -- servers to complain about -------------------------------------------------------------------------------


def calc(**options: Any) -> Server:
    server = Server("calc", "1", **options)

    @server.tool
    def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
        """Add."""
        return a + b

    return server


def one_tool(function: Callable[..., Any], **options: Any) -> Server:
    server = Server("one", "1", **options)
    server.add_tool(function)
    return server


def tokens() -> StaticTokens:
    return StaticTokens({TOKEN: "alice"})


def crash() -> int:
    return 1 // 0


async def sleep() -> None:
    await asyncio.Event().wait()


def long() -> str:
    return "x" * 1000


async def ask(ctx: Context) -> str:
    return await ctx.ask("Your name?", str)


@moderate("filesystem.read")
def read() -> str:
    return "text"


@dangerous("filesystem.write")
def wipe() -> str:
    return "gone"


def fetch(url: PublicUrl) -> str:
    return url


@dangerous("shell.execute", confirm=False)
def git(command: Annotated[ShellCommand, Shell(allowed={"git": ["status"]})]) -> str:
    return command.text


def evaluate(code: Annotated[str, Code(level="strict", allow=["math"])]) -> str:
    return code


# -- how users meet errors -----------------------------------------------------------------------------------


def called(
    server: Server, tool: str, *answers: Any, over: str = "memory", offers: tuple[str, ...] = ("ask",), **a: Any
):
    """What a model reads of a call that fails; the second, if the first does not. Over `ws` a stranger calls."""
    token: dict[str, Any] = {"http": {"token": TOKEN}, "ws": {"token": None}}.get(over, {})
    client = SyncClient(server, "handshake", over=over, **token)
    try:
        client.offers(*offers)
        client.will_answer(*answers)
        client.call(tool, **a)
        client.call(tool, **a)
    except DefserveError as error:
        return str(error)
    finally:
        client.close(check=False)
    return "nothing went wrong"


def called_without_a_name(desk: Desk) -> str:
    """What a stranger reads whose requests belong to no session."""
    desk.has("counts.py", HEAD + COUNT.format("count.db"))
    client = SyncClient(load_server("counts.py"), "stateless", over="ws", token=None)
    try:
        return raised(DefserveError, lambda: client.call("count"))
    finally:
        client.close(check=False)


def posted(server: Server, *, host: str = "localhost", message: Mapping[str, Any] | None = None, **headers: str) -> str:
    """The status and the text of an answer to an HTTP request."""
    sent = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(message or {"jsonrpc": "2.0", "id": 1, "method": "ping"})
    with TestClient(server.asgi(), base_url=f"http://{host}") as web:
        answer = web.post("/", content=body, headers=sent)
    text = answer.json()["error"]["message"] if answer.text.startswith("{") else answer.text
    return f"{answer.status_code} {text}"


def opened_in_a_browser(server: Server) -> str:
    """The status and the text that a browser gets through a proxy."""
    with TestClient(server.asgi(), base_url="http://localhost") as web:
        answer = web.get("/", headers={"accept": "text/html", "via": "1.1 proxy"})
    sentence = answer.text.partition("<p class=lead>")[2].partition("</p>")[0]
    return f"{answer.status_code} {sentence}"


def request(version: str = "2026-07-28", method: str = "tools/list") -> dict[str, Any]:
    meta: dict[str, Any] = {f"{PREFIX}protocolVersion": version, f"{PREFIX}clientCapabilities": {}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}


def sent(method: str, *, version: str = "2025-11-25", opened: bool = True, **params: Any) -> str:
    """The code and the text of a JSON-RPC error."""

    async def exchange() -> str:
        async with raw(calc(), version, opened=opened) as peer:
            error = (await peer.ask(method, params))["error"]
            return f"{error['code']} {error['message']}"

    return asyncio.run(exchange())


def raised(kind: type[BaseException], act: Callable[[], Any]) -> str:
    with pytest.raises(kind) as found:
        act()
    return str(found.value)


# -- what takes more than a line -----------------------------------------------------------------------------


def on_a_port_in_use(desk: Desk) -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return desk.serves(f"http://127.0.0.1:{taken.getsockname()[1]}/mcp")


def while_shutting_down(_: Desk) -> str:
    release = asyncio.Event()

    async def cook() -> None:
        await release.wait()

    async def ending() -> str:
        server = one_tool(cook)
        mgp = {"version": "0.3.0", "extensions": ["lifecycle"]}
        async with server.connect("2025-11-25", capabilities={"mgp": mgp}) as client:
            cooking = asyncio.create_task(client.call("cook"))
            await client.ping()
            await client.request("mgp/lifecycle/shutdown", {"reason": "operator_request", "timeout_ms": 5000})
            try:
                await client.call("cook")
            except DefserveError as error:
                return str(error)
            finally:
                release.set()
                await cooking
        return "nothing went wrong"

    return asyncio.run(ending())


def without_containment(desk: Desk) -> str:
    desk.patch.setattr("defserve.sandbox.confinement.probe", Layers)
    return raised(Refused, lambda: sandbox.run("1", level="standard"))


def changed_while_developing(desk: Desk) -> str:
    desk.has("server.py", "from defserve import Server\nserver = Server('calc', '1'\n")
    command = [sys.executable, "-m", "defserve", "dev", "server.py"]
    with subprocess.Popen(
        command, cwd=desk.folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdin is not None and dev.stderr is not None
        said = next(line for line in dev.stderr if "waiting for a change" in line)
        dev.stdin.close()
        dev.stderr.read()
    return said


def a_test_that_names_no_server(desk: Desk) -> str:
    desk.has("test_it.py", "def test_it(client): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "defserve.testing.plugin"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(FRAMEWORK)}
    return subprocess.run(command, cwd=desk.folder, env=environment, capture_output=True, text=True).stdout


def with_a_damaged_store(desk: Desk) -> str:
    text = COUNT.format("count.db")
    desk.calls("count", text=text)
    path = desk.folder / "count.db"
    data = path.read_bytes()
    # The head stays, so that it is still known as an SQLite file.
    path.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    return desk.calls("count", text=text)


def an_answer_that_nobody_asked_for(_: Desk) -> str:
    client = SyncClient(calc(), "handshake")
    client.will_answer({"value": "Ada"})
    client.call("add", a=1, b=2)
    return raised(UnusedAnswer, client.close)


def a_question_without_an_answer(_: Desk) -> str:
    client = SyncClient(one_tool(ask), "handshake")
    try:
        return raised(UnansweredQuestion, lambda: client.call("ask"))
    finally:
        client.close(check=False)


def without_pytest(desk: Desk) -> str:
    desk.patch.setattr("defserve.cli.commands.package.find_spec", nothing)
    return desk.types("test")


def nothing(*_: object) -> None:
    """Finds no module."""


def published_without_an_uploader(desk: Desk) -> str:
    desk.patch.setenv("PATH", "")
    find = package.find_spec
    desk.patch.setattr(package, "find_spec", lambda name: None if name == "twine" else find(name))
    return desk.types("publish", str(write_project(desk.folder / "weather-mcp")), "--yes")


def packaged_without_a_marker(desk: Desk) -> str:
    project = write_project(desk.folder / "weather-mcp")
    (project / "README.md").write_text("# Weather\n")
    return desk.types("package", str(project))


def pushed_to_nobody(_: Desk) -> str:
    reminders = Server("live", "1").feature_set("memory.reminders", "Remind")
    return raised(DefserveError, lambda: asyncio.run(reminders.push("Call Alice")))
