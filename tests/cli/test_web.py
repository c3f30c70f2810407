"""`--web`: the inspector from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from defserve.cli.target import ServerTarget, resolve_target
from defserve.inspector import page_server
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.page_server import InspectorWebOptions
from defserve.kernel.kernel import Kernel
from tests.cli.running import Run
from tests.kernel.running import entry

pytestmark = pytest.mark.usefixtures("forked")

SERVER = '''
from defserve import Server

server = Server("small", "1")


@server.tool
def one() -> int:
    """One."""
    return 1
'''


@pytest.fixture
def served(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(SERVER)
    return str(tmp_path / "small.py")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[InspectionTarget, InspectorWebOptions, Any]]:
    """Instead of serving a page, the inspector opens one conversation: what it found."""
    found = list[tuple[InspectionTarget, InspectorWebOptions, Any]]()

    async def run(target: InspectionTarget, options: InspectorWebOptions, ending: asyncio.Future[int]) -> int:
        from defserve.inspector.inspection import Inspection

        async with Inspection(target) as inspection:
            client = await inspection.client()
            found.append((target, options, [tool["name"] for tool in await client.tools()]))
        return 0

    monkeypatch.setattr(page_server, "run_inspector", run)
    return found


def test_the_file_of_a_kernel_is_inspected_with_a_way_to_operate_it(
    defserve: Run, tmp_path: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
):
    with TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        path = tmp_path / "mgp.toml"
        path.write_text('[kernel]\nname = "house"\n' + entry("a"))
        assert defserve("inspect", str(path), "--web", "--no-browser").code == 0
    ((target, _, _),) = runs
    assert (target.kernel.config, target.kernel.process) == (path, os.getpid())


def test_a_file_of_a_kernel_that_is_not_there_is_told(defserve: Run):
    done = defserve("inspect", "nowhere.toml", "--web", "--no-browser")
    assert (done.code, "there is no file nowhere.toml" in done.err) == (1, True)


def test_the_kernel_that_runs_is_inspected_where_its_file_says_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "mgp.toml"
    path.write_text('[kernel]\non = "http://127.0.0.1:8123/mcp"\n')

    async def resolved() -> ServerTarget:
        async with Kernel.load(path).server.connect():
            return await asyncio.to_thread(resolve_target, [str(path)], None, None)

    with TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        found = asyncio.run(resolved())
    assert (found.address, found.kernel, found.server) == ("http://127.0.0.1:8123/mcp", path, None)


@pytest.mark.parametrize(
    ("on", "address"),
    [
        ("http://127.0.0.1:8124/mcp", "http://127.0.0.1:8124/mcp"),
        ("ws://127.0.0.1:8124/mcp", "ws://127.0.0.1:8124/mcp"),
        ("http://127.0.0.1:0/mcp", ""),
        ("stdio:", ""),
    ],
)
@pytest.mark.parametrize("said", ["", 'on = "http://127.0.0.1:8123/mcp"'])
def test_the_kernel_that_runs_is_inspected_where_it_says_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    on: str,
    address: str,
    said: str,
):
    path = tmp_path / "mgp.toml"
    path.write_text(f"[kernel]\n{said}\n")

    async def resolved() -> ServerTarget:
        kernel = Kernel.load(path)
        kernel.on = on
        async with kernel.server.connect():
            return await asyncio.to_thread(resolve_target, [str(path)], None, None)

    with TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        found = asyncio.run(resolved())
    assert (found.address, found.kernel) == (address, path)
    assert found.process == (os.getpid() if address else None)
    # A second kernel is never started in silence.
    assert ("serves" in capsys.readouterr().err) == (found.server is not None) == (not address)


def test_a_file_is_inspected(defserve: Run, served: str, runs: list[Any]):
    assert defserve("inspect", served, "--web", "--no-browser", "--port", "8123").code == 0
    ((target, options, tools),) = runs
    assert (target.words, target.address, options, tools) == (
        (served,),
        served,
        InspectorWebOptions(8123, False),
        ["one"],
    )
    assert target.tracebacks == "The traceback is in the terminal where the inspector runs."


def test_a_command_is_inspected(defserve: Run, served: str, runs: list[Any]):
    source = "import sys; from defserve.cli import main; sys.exit(main())"
    assert (
        defserve("inspect", "--web", "--era", "handshake", "--", sys.executable, "-c", source, "run", served).code == 0
    )
    ((target, options, tools),) = runs
    assert target.words[:2] == ("--", sys.executable) and tools == ["one"]
    assert (target.era, options.browser) == ("handshake", True)
    assert target.tracebacks.startswith("With defserve inspect -v")


def test_a_store_beside_the_server_is_read(defserve: Run, served: str, runs: list[Any], tmp_path: Path):
    address = f"sqlite:///{tmp_path}/notes.db"
    assert "does not exist" in defserve("inspect", served, "--web", "--store", address).err
    assert "can only be read by its own process" in defserve("inspect", served, "--web", "--store", "memory:").err
    assert runs == []
    sqlite3.connect(tmp_path / "notes.db").close()
    assert defserve("inspect", served, "--web", "--no-browser", "--store", address).code == 0
    ((target, _, _),) = runs
    assert target.stored("notes.edit").facts == {"store": address}


def test_a_file_with_states_is_read_where_they_are_kept(defserve: Run, runs: list[Any]):
    notes = str(Path(__file__).parents[2] / "examples" / "git_like.py")
    assert defserve("inspect", notes, "--web", "--no-browser").code == 0
    ((target, _, _),) = runs
    assert target.stored("git.commit").facts == {"store": "memory", "keep": 1000, "undoes": True, "opaque": True}
    assert target.stored("other") is None


def test_code_is_not_loaded_by_the_inspector_itself(defserve: Run, tmp_path: Path, runs: list[Any]):
    path = tmp_path / "loaded.py"
    path.write_text(f"import os\nopen({str(tmp_path / 'by')!r}, 'w').write(str(os.getpid()))\n{SERVER}")
    assert defserve("inspect", str(path), "--web", "--no-browser").code == 0
    ((target, _, tools),) = runs
    assert (target.server, target.starts, tools) == (None, True, ["one"])
    assert int((tmp_path / "by").read_text()) != os.getpid()


def test_a_file_that_is_not_there_is_told_before_anything_is_opened(defserve: Run, runs: list[Any]):
    done = defserve("inspect", "nowhere.py", "--web", "--no-browser")
    assert (done.code, "there is no file" in done.err, runs) == (1, True, [])


def test_wrong_options_are_told(defserve: Run, served: str, runs: list[Any]):
    assert "there is no port 70000" in defserve("inspect", served, "--web", "--port", "70000").err
    assert "use --era handshake or --era stateless" in defserve("inspect", served, "--web", "--era", "2024-11-05").err
    assert runs == []


async def _page(command: list[str]) -> tuple[str, list[str], int, str]:
    """The address that a command prints, the tools its page lists, and how it ends while that page is open."""
    from websockets.asyncio.client import connect

    process = await asyncio.create_subprocess_exec(
        # An interpreter of its own, for -s: a forked one would not get the signal.
        *(sys.executable, "-s", "-m", "defserve", *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        origin, _, token = address.partition("/?token=")
        protocols: Any = ["defserve-inspector", f"token.{token}"]
        async with connect(f"ws{origin[4:]}/socket", origin=origin, subprotocols=protocols, proxy=None) as socket:  # pyright: ignore
            await socket.send(json.dumps({"id": 1, "do": "tools.list"}))
            answer: Any = None
            while answer is None:
                said = json.loads(await socket.recv())
                answer = next((message for message in said if message.get("id") == 1), None)
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
        tools = [tool["definition"]["name"] for tool in answer["ok"]["tools"]]
        return address, tools, process.returncode or 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "dev"])
def test_the_address_is_a_line_of_its_own_and_ctrl_c_ends_it(served: str, command: str):
    address, tools, code, errors = asyncio.run(_page([command, served, "--web", "--no-browser"]))
    assert address.startswith("http://127.0.0.1:") and len(address.partition("?token=")[2]) >= 43
    assert (tools, code) == (["one"], 130)
    assert "Traceback" not in errors and "ERROR" not in errors
