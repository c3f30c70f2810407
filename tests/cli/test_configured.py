"""Commands that are pointed at a server by the name it has in `.mcp.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from tests.cli.running import Run
from tests.client.pretend import STATELESS
from tests.client.web import Exchange, Web, web

pytestmark = pytest.mark.usefixtures("forked")

SERVER = """
import os, sys
from defserve import Server
server = Server("weather")
@server.tool
def forecast(city: str) -> str:
    "Say what the weather will be."
    return f"{city}: {os.environ.get('MOOD', 'mild')} in {os.path.basename(os.getcwd())} {' '.join(sys.argv[1:])}"
if __name__ == "__main__":
    server.run()
"""


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one server in its `.mcp.json`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "framework"))
    (folder / "weather_here.py").write_text(SERVER)
    write(folder, weather={"type": "stdio", "command": sys.executable, "args": ["weather_here.py"]})
    return folder


@pytest.fixture
def elsewhere() -> Iterator[Web]:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(
            {"server/discover": STATELESS["server/discover"], "tools/list": {"tools": []}}[exchange.method]
        )

    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(web(handle)) as server:
        yield server


def write(folder: Path, **servers: Any) -> None:
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


@pytest.mark.slow
def test_a_server_is_listed_called_inspected_and_checked_by_its_name(defserve: Run, project: Path):
    assert "forecast(city: string)" in defserve("list", "weather").out
    assert defserve("call", "weather", "forecast", "city=Oslo").out.startswith("Oslo: mild")
    assert "forecast(city: string)" in defserve("inspect", "weather").out
    code, out, _ = defserve("check", "weather", "--strict")
    assert code == 1 and "missing-parameter-description" in out


@pytest.mark.slow
def test_its_export_names_the_command_that_starts_it(defserve: Run, project: Path):
    out = defserve("export", "weather", "--format", "mgp").out
    assert f'command = "{sys.executable}"' in out and 'args = ["weather_here.py"]' in out


@pytest.mark.slow
def test_the_file_of_a_folder_above_is_found_and_its_folder_is_where_the_server_starts(
    defserve: Run, project: Path, monkeypatch: pytest.MonkeyPatch
):
    (project / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "src" / "deep")
    assert f"in {project.name}" in defserve("call", "weather", "forecast", "city=Oslo").out


@pytest.mark.slow
def test_environment_arguments_and_working_folder_are_honoured(
    defserve: Run, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TODAY", "stormy")
    (project / "sea").mkdir()
    own = project / "sea" / "python"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    own.chmod(0o755)
    entry = {"args": ["../weather_here.py", "${ABSENT:-always}", "${workspaceFolder}"], "cwd": "sea"}
    write(project, weather={"command": "./python", **entry, "env": {"MOOD": "${TODAY}"}})
    assert defserve("call", "weather", "forecast", "city=Oslo").out == f"Oslo: stormy in sea always {project}\n"


def test_a_variable_that_is_not_set_is_named(defserve: Run, project: Path):
    write(project, weather={"command": sys.executable, "args": ["weather_here.py"], "env": {"MOOD": "${NOT_SET_HERE}"}})
    code, _, err = defserve("list", "weather")
    assert code == 1 and "needs the variable NOT_SET_HERE" in err and "export NOT_SET_HERE=" in err


def test_an_address_is_spoken_to_with_its_headers(
    defserve: Run, project: Path, elsewhere: Web, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KEY", "k-1")
    headers = {"Authorization": "Bearer ${KEY}", "X-Team": "blue"}
    write(project, far={"type": "http", "url": elsewhere.url, "headers": headers})
    assert defserve("list", "far", "-H", "x-team: red").code == 0
    assert {exchange.headers["authorization"] for exchange in elsewhere.seen} == {"Bearer k-1"}
    assert {exchange.headers["x-team"] for exchange in elsewhere.seen} == {"red"}


@pytest.mark.slow
def test_a_module_goes_before_a_name_and_the_file_says_that_the_name_is_meant(defserve: Run, project: Path):
    (project / "both.py").write_text("from tests.testing.toy import server")
    write(project, both={"command": sys.executable, "args": ["weather_here.py"]})
    assert defserve("list", "both").out.startswith("pretend 2")
    assert defserve("list", ".mcp.json:both").out.startswith("weather")
    assert defserve("list", str(project / ".mcp.json") + ":both").out.startswith("weather")


def test_a_name_may_be_that_of_a_module_of_the_standard_library(defserve: Run, project: Path):
    write(project, time={"command": sys.executable, "args": ["weather_here.py"]})
    assert defserve("list", "time").out.startswith("weather")


@pytest.mark.slow
def test_a_name_may_have_dots(defserve: Run, project: Path):
    write(project, **{"io.github.ada/weather": {"command": sys.executable, "args": ["weather_here.py"]}})
    assert defserve("list", "io.github.ada/weather").out.startswith("weather")


def test_the_settings_of_another_client_may_be_named(defserve: Run, project: Path):
    (project / ".vscode").mkdir()
    entry = {"command": sys.executable, "args": ["../weather_here.py"]}
    (project / ".vscode" / "mcp.json").write_text(f"// mine\n{json.dumps({'servers': {'weather': entry}})}")
    assert defserve("list", ".vscode/mcp.json:weather").out.startswith("weather")


def test_an_unknown_name_is_told_the_known_ones(defserve: Run, project: Path):
    code, _, err = defserve("list", "wether")
    assert code == 1 and str(project / ".mcp.json") in err and "did you mean 'weather'?" in err
    code, _, err = defserve("call", ".mcp.json:wether", "forecast")
    assert code == 1 and "has no server 'wether'" in err and "did you mean 'weather'?" in err


def test_an_address_without_its_scheme_and_a_folder_are_no_unknown_names(defserve: Run, project: Path):
    for target, fix in [
        ("localhost:8000", "write the whole address: http://localhost:8000/mcp"),
        (".", "name the file"),
    ]:
        code, _, err = defserve("list", target)
        assert code == 1 and fix in err and "installed server" not in err


def test_without_a_target_the_names_are_shown(defserve: Run, project: Path):
    assert f"Servers in .mcp.json\n  weather  {sys.executable} weather_here.py\n" in defserve("list").out
    assert [each["name"] for each in json.loads(defserve("list", "--json").out)] == ["weather"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("python", "is not an object"),
        ({"args": []}, "neither a command nor a url"),
        ({"command": ["python"]}, "neither a command nor a url"),
        ({"command": "python", "cwd": "nowhere"}, "there is no folder"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why(defserve: Run, project: Path, entry: Any, said: str):
    write(project, weather=entry)
    code, _, err = defserve("list", "weather")
    assert code == 1 and said in err and "fix: " in err


def test_a_command_that_is_not_there_cannot_be_reached(defserve: Run, project: Path):
    write(project, weather={"command": ".venv/bin/python", "args": []})
    code, _, err = defserve("list", "weather")
    assert code == 4 and str(project / ".venv/bin/python") in err


def test_a_broken_file_is_named(defserve: Run, project: Path):
    (project / ".mcp.json").write_text('{"mcpServers": ')
    code, _, err = defserve("list", "weather")
    assert code == 1 and f"{project / '.mcp.json'} is not JSON" in err


@pytest.mark.parametrize("command", ["run", "dev"])
def test_what_is_served_has_to_be_code(defserve: Run, project: Path, command: str):
    code, _, err = defserve(command, "weather")
    assert code == 1 and "only code can be served" in err and "defserve list weather" in err


def test_another_client_is_told_of_it_by_its_command(defserve: Run, project: Path):
    code, _, err = defserve("install", "weather", "--client", "cursor")
    assert code == 1
    assert f"defserve install --client cursor --name weather -- {sys.executable} weather_here.py" in err


@pytest.mark.slow
def test_the_tests_of_its_project_are_run(defserve: Run, project: Path, monkeypatch: pytest.MonkeyPatch):
    (project / "test_it.py").write_text("def test_it(): pass")
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n")
    (project / "deep").mkdir()
    monkeypatch.chdir(project / "deep")
    assert defserve("test", "weather", "--", "-q").code == 0
    assert "weather" in defserve("test", "wether").err
