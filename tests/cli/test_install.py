from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from defserve.client.known_clients import KNOWN_CLIENTS
from tests.cli.running import Run

HEADERS = {"A": "b", "Authorization": "Bearer t0ken"}
CALC = '''
from defserve import Server

server = Server("my calc", "1")
other = Server("other", "1")

@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a project of their own."""
    home = folder / "home"
    for variable in ("HOME", "USERPROFILE", "APPDATA"):
        monkeypatch.setenv(variable, str(home))
    for variable in ("XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    Path("calc.py").write_text(CALC)
    return home


def command_in(path: Path, key: str = "mcpServers", name: str = "my-calc") -> list[str]:
    entry = json.loads(path.read_text())[key][name]
    return [entry["command"], *entry["args"]]


@pytest.mark.slow
def test_the_command_that_is_written_serves_the_server(defserve: Run, home: Path, monkeypatch: pytest.MonkeyPatch):
    assert defserve("install", "calc.py").code == 0
    command = command_in(Path(".mcp.json"))
    elsewhere = home / "elsewhere"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert os.path.isabs(command[0])
    assert defserve("call", "add", "a=1", "b=2", "--", *command) == (0, "3\n", "")


def test_a_module_of_this_folder_is_found_from_elsewhere(defserve: Run, home: Path):
    assert defserve("install", "calc:other", "--client", "cursor").code == 0
    entry = json.loads((home / ".cursor" / "mcp.json").read_text())["mcpServers"]["other"]
    assert entry == {
        "command": sys.executable,
        "args": ["-m", "defserve", "run", "calc:other"],
        "env": {"PYTHONPATH": str(Path.cwd())},
    }


@pytest.mark.parametrize("client", KNOWN_CLIENTS)
def test_every_client_is_told_and_can_be_made_to_forget(defserve: Run, home: Path, client: str):
    code, out, _ = defserve("install", "calc.py:other", "--client", client, "--name", "mine", "--env", "K=v")
    assert code == 0
    known = KNOWN_CLIENTS[client]
    path = known.path(None, Path.cwd())
    assert f"mine is in {path}" in out
    read = tomllib.loads if known.format == "toml" else json.loads
    entry = read(path.read_text())[known.key]["mine"]
    assert entry["env"] == {"K": "v"} and entry["args"][-1].endswith("calc.py:other")
    assert defserve("install", "calc.py", "--client", client, "--name", "ours").code == 0
    assert defserve("uninstall", "mine", "--client", client).code == 0
    assert list(read(path.read_text())[known.key]) == ["ours"]


@pytest.mark.parametrize("client", KNOWN_CLIENTS)
def test_a_file_that_was_made_for_a_server_goes_with_it(defserve: Run, home: Path, client: str):
    path = KNOWN_CLIENTS[client].path(None, Path.cwd())
    defserve("install", "calc.py", "--client", client)
    defserve("install", "calc.py", "--client", client, "--env", "K=v")
    assert path.with_name(path.name + ".bak").exists()
    code, out, _ = defserve("uninstall", "my-calc", "--client", client, "--dry-run")
    assert (code, path.exists()) == (0, True) and "my-calc" in out
    code, out, _ = defserve("uninstall", "my-calc", "--client", client)
    assert (code, out) == (0, f"{path} held only my-calc, so the file was removed\n")
    assert not path.exists() and not path.with_name(path.name + ".bak").exists()


@pytest.mark.parametrize("before", ['{ "mcpServers": {} }', '{"mcpServers": {}, "theme": "x"}', "// mine\n{}\n"])
def test_a_file_that_somebody_else_made_stays(defserve: Run, home: Path, before: str):
    Path(".mcp.json").write_text(before)
    defserve("install", "calc.py")
    assert defserve("uninstall", "my-calc").code == 0
    assert "my-calc" not in Path(".mcp.json").read_text()


def test_a_dry_run_shows_the_change_and_makes_none(defserve: Run, home: Path):
    code, out, _ = defserve("install", "calc.py", "--client", "codex", "--dry-run")
    assert code == 0
    assert "+[mcp_servers.my-calc]" in out.splitlines()
    assert not home.exists()


def test_comments_other_servers_and_permissions_stay(defserve: Run, home: Path):
    path = home / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    before = '// Zed\n{\n    "theme": "One", // dark\n    "context_servers": {"a": {"command": "b"}},\n}\n'
    path.write_text(before)
    path.chmod(0o644)
    assert defserve("install", "calc.py", "--client", "zed").code == 0
    after = path.read_text()
    assert '"theme": "One", // dark' in after and '"a": {"command": "b"}' in after and "my-calc" in after
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.with_name("settings.json.bak").read_text() == before
    assert defserve("uninstall", "my-calc", "--client", "zed").code == 0
    assert path.read_text() == before


def test_a_broken_file_is_left_alone(defserve: Run, home: Path):
    Path(".mcp.json").write_text('{\n  "mcpServers": {,}\n}')
    code, out, err = defserve("install", "calc.py")
    assert (code, out) == (1, "")
    assert ".mcp.json:2" in err and "left alone" in err and "fix: " in err
    assert Path(".mcp.json").read_text() == '{\n  "mcpServers": {,}\n}'


def test_the_same_again_changes_nothing(defserve: Run, home: Path):
    defserve("install", "calc.py")
    assert "already in" in defserve("install", "calc.py").out
    assert not Path(".mcp.json.bak").exists()


def test_an_address_and_a_command_can_be_installed(defserve: Run, home: Path):
    address = ("https://example.com:8443/mcp", "--name", "example-com")
    assert defserve("install", *address, "-H", "A: b", "--token", "t0ken").code == 0
    assert defserve("install", "--name", "py", "--", sys.executable, "x.py", "--flag").code == 0
    servers = json.loads(Path(".mcp.json").read_text())["mcpServers"]
    assert servers["example-com"] == {"type": "http", "url": "https://example.com:8443/mcp", "headers": HEADERS}
    assert servers["py"] == {"type": "stdio", "command": sys.executable, "args": ["x.py", "--flag"]}


@pytest.mark.parametrize("client", KNOWN_CLIENTS)
def test_what_was_given_to_install_can_be_given_to_uninstall(defserve: Run, home: Path, client: str):
    known = KNOWN_CLIENTS[client]
    addresses = ["https://example.com/mcp"] if client != "claude-desktop" else []
    for target in ("calc.py", "calc:other", *addresses):
        assert defserve("install", target, "--client", client, "--name", "mine", "--env", "K=v").code == 0
        code, out, _ = defserve("uninstall", target, "--client", client)
        assert (code, out) == (0, f"{known.path(None, Path.cwd())} held only mine, so the file was removed\n")


def test_a_server_that_was_installed_twice_is_uninstalled_by_name(defserve: Run, home: Path):
    defserve("install", "calc.py")
    defserve("install", "calc.py", "--name", "again")
    code, _, err = defserve("uninstall", "calc.py")
    assert code == 1 and "2 servers in" in err and "fix: name one: my-calc or again" in err


@pytest.mark.parametrize(
    ("argv", "warning"),
    [
        (
            ["--client", "vscode"],
            "fix: --client vscode --scope user writes your own settings instead; or keep the file",
        ),
        (["--client", "mcp-json"], "fix: keep the file out of the repository"),
        (["--client", "vscode", "--scope", "user"], ""),
        (["--client", "cursor"], ""),
    ],
)
def test_a_secret_in_the_settings_of_a_project_is_warned_of(defserve: Run, home: Path, argv: list[str], warning: str):
    address = ("install", "https://example.com/mcp", "--name", "mine", *argv)
    assert defserve(*address, "-H", "X-Team: red").err == ""
    err = defserve(*address, "--token", "t0ken").err
    assert warning in err and "t0ken" not in err
    assert ("belongs to the project, and holds a secret: Authorization" in err) is bool(warning)


@pytest.mark.parametrize("client", KNOWN_CLIENTS)
def test_what_to_do_next_does_not_repeat_the_name_of_the_client(defserve: Run, home: Path, client: str):
    next_step = defserve("install", "calc.py", "--client", client).out.splitlines()[-1]
    assert next_step.count(KNOWN_CLIENTS[client].title) == 1


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["install"], "install needs one server"),
        (["install", "calc.py", "--", "x"], "install needs one server"),
        (["install", "nowhere.py"], "there is no file"),
        (["install", "calc.py", "--client", "emacs"], "--client cannot be 'emacs'"),
        (["install", "calc.py", "--client", "codex", "--scope", "project"], "has no project settings"),
        (["install", "calc.py", "--env", "K"], "'K' is not a variable"),
        (["install", "calc.py", "--name", "a b"], "cannot be the name of a server"),
        (["install", "calc.py", "--token", "t"], "only a server at an address takes tokens and headers"),
        (["install", "calc.py", "-H", "A: b"], "only a server at an address takes tokens and headers"),
        (["install", "--", "no-such-command-here"], "there is no command"),
        (["install", "https://example.com/mcp", "--client", "claude-desktop"], "only starts commands"),
        (["uninstall", "nothing"], "there is no server 'nothing'"),
        (["uninstall", "nothing"], "these have no servers"),
    ],
)
def test_wrong_usage_is_explained_and_nothing_is_written(defserve: Run, home: Path, argv: list[str], complaint: str):
    code, out, err = defserve(*argv)
    assert (code, out) == (1, "")
    assert complaint in err and "fix: " in err
    assert not Path(".mcp.json").exists() and not home.exists()


# -- servers that distributions bring --------------------------------------------------------------------


@pytest.fixture
def installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that registers the server of calc.py."""
    about = home.parent / "calc_mcp-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: calc-mcp\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[defserve.servers]\ncalc-mcp = calc:server\n")
    monkeypatch.syspath_prepend(str(home.parent))


@pytest.mark.usefixtures("installed")
def test_an_installed_server_is_known_by_its_name(defserve: Run):
    assert defserve("call", "calc-mcp", "add", "a=1", "b=2").out == "3\n"
    assert defserve("install", "calc-mcp").code == 0
    assert command_in(Path(".mcp.json"))[1:] == ["-m", "defserve", "run", "calc-mcp"]


@pytest.mark.usefixtures("installed")
def test_a_folder_of_its_name_is_not_taken_for_it(defserve: Run):
    Path("calc-mcp").mkdir()
    assert defserve("call", "calc-mcp", "add", "a=1", "b=2").out == "3\n"


@pytest.mark.usefixtures("installed")
def test_without_a_target_the_installed_servers_are_listed(defserve: Run):
    code, out, _ = defserve("list")
    assert (code, out.splitlines()) == (0, ["Installed servers", "  calc-mcp  calc-mcp 2.0  calc:server"])
    assert json.loads(defserve("list", "--json").out) == [
        {"name": "calc-mcp", "target": "calc:server", "distribution": "calc-mcp", "version": "2.0"}
    ]


@pytest.mark.usefixtures("installed")
def test_a_name_that_is_neither_module_nor_installed_is_unknown(defserve: Run):
    code, _, err = defserve("list", "calc-mcpx")
    assert code == 1 and "calc-mcpx" in err
