"""`defserve kernel` as processes: serving, operating, ending."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from defserve.cli import main
from defserve.cli.commands.kernel import FILE_ACTIONS
from defserve.cli.kernel_actions import list_kernel_commands
from defserve.errors import PeerGone
from defserve.kernel.control import ask_kernel
from tests.kernel.running import entry
from tests.rows import for_each_row
from tests.waiting import is_running, wait_until


@contextmanager
def kernel(folder: Path, *entries: str, on: str = "http://127.0.0.1:0/mcp") -> Iterator[subprocess.Popen[str]]:
    (folder / "mgp.toml").write_text("\n".join(entries))
    command = [sys.executable, "-m", "defserve", "kernel", "--config", str(folder / "mgp.toml"), "--on", on]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def defserve(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that operates a kernel. It runs in this process; the kernel has its own."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main(["kernel", *words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """What `ps --json` prints, without starting a process for it."""
    try:
        return {row["id"]: row for row in ask_kernel(folder / "mgp.toml", {"verb": "ps"})}
    except PeerGone:
        return {}


def wait_for(folder: Path, **states: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def holds() -> bool:
        found.update(rows(folder))
        return all(id in found and found[id]["state"] == state for id, state in states.items())

    wait_until(holds, 60)
    return found


@pytest.mark.slow
def test_a_kernel_is_operated_from_the_command_line(tmp_path: Path) -> None:
    with kernel(tmp_path, "[kernel]\nwatch = false", entry("a"), entry("b")):
        processes = wait_for(tmp_path, a="connected", b="connected")
        assert json.loads(defserve(tmp_path, "ps", "--json").stdout.splitlines()[0])["id"] == "a"
        assert defserve(tmp_path, "ps").stdout.splitlines()[0].split()[:3] == ["ID", "STATE", "ERA"]
        assert defserve(tmp_path, "stop", "b").stdout == "b is disconnected\n"
        assert not is_running(processes["b"]["pid"])
        assert defserve(tmp_path, "start", "b", "--json").returncode == 0
        wait_for(tmp_path, b="connected")
        assert defserve(tmp_path, "restart", "a").stdout == "a is connected\n"
        assert rows(tmp_path)["a"]["pid"] != processes["a"]["pid"]
        assert "started with" in defserve(tmp_path, "logs", "a").stdout
        wrong = defserve(tmp_path, "restart", "aa")
        assert (wrong.returncode, wrong.stderr) == (1, "error: there is no server 'aa'\n  fix: did you mean 'a'?\n")
        (tmp_path / "mgp.toml").write_text("[kernel]\nwatch = false\n" + entry("a"))
        assert defserve(tmp_path, "reload").stdout == "removed: b\n"
        assert set(rows(tmp_path)) == {"a"}


@pytest.mark.slow
def test_top_shows_a_kernel_at_its_address_though_it_serves_no_metrics(tmp_path: Path) -> None:
    on = f"unix:{tmp_path / 's'}"
    with kernel(tmp_path, entry("a"), on=on):
        wait_for(tmp_path, a="connected")
        out, err = io.StringIO(), io.StringIO()
        wait_until((tmp_path / "s").exists)
        with redirect_stdout(out), redirect_stderr(err):
            assert main(["top", on]) == 0, err.getvalue()
    assert "1 of 1 servers" in out.getvalue() and "--metrics" not in out.getvalue()


@pytest.mark.parametrize("option", ["--to", "--url"])
def test_a_kernel_is_not_named_by_an_address_and_the_fix_says_how(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernel", "ps", option, "http://127.0.0.1:8000/mcp"]) == 1
    assert "fix: a kernel is named by its file: write --config mgp.toml" in capsys.readouterr().err


def test_without_a_kernel_its_verbs_say_so(tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text("")
    found = defserve(tmp_path, "ps")
    assert found.returncode == 4
    assert "no kernel serves" in found.stderr


def test_an_action_after_options_is_done_and_never_serves_instead(tmp_path: Path) -> None:
    (tmp_path / "desk.toml").write_text("")
    for options in (["--config", "desk.toml"], ["--config=desk.toml"]):
        found = defserve(tmp_path, *options, "restart", "wiki")
        assert (found.returncode, found.stderr) == (4, defserve(tmp_path, "restart", "wiki", *options).stderr)
    found = defserve(tmp_path, "--on", "http://127.0.0.1:0/mcp", "ps")
    assert found.returncode == 1 and "write the action first: defserve kernel ps" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_kernel_ends_its_servers(tmp_path: Path, number: signal.Signals) -> None:
    with kernel(tmp_path, entry("a"), entry("b")) as process:
        servers = [row["pid"] for row in wait_for(tmp_path, a="connected", b="connected").values()]
        process.send_signal(number)
        process.wait(30)
        wait_until(lambda: not any(map(is_running, servers)))
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.sock"))


@pytest.mark.slow
def test_a_killed_kernel_leaves_no_servers_not_even_deaf_ones(tmp_path: Path) -> None:
    with kernel(tmp_path, entry("a"), entry("b", "--deaf")) as process:
        servers = [row["pid"] for row in wait_for(tmp_path, a="connected", b="connected").values()]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        wait_until(lambda: not any(map(is_running, servers)))


@pytest.mark.slow
def test_a_client_may_start_the_kernel_itself_and_several_may_serve_one_file(tmp_path: Path) -> None:
    with kernel(tmp_path, entry("a"), on="stdio:") as one, kernel(tmp_path, entry("a"), on="stdio:") as two:
        for process in (one, two):
            assert process.stdin is not None
            assert process.stdout is not None
            meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
            meta |= {"io.modelcontextprotocol/clientCapabilities": {}}  # type: ignore[dict-item]
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            names = [tool["name"] for tool in json.loads(process.stdout.readline())["result"]["tools"]]
            assert "a_add" in names
        both = defserve(tmp_path, "ps")
        assert both.returncode == 1
        assert "2 kernels serve" in both.stderr
        assert defserve(tmp_path, "ps", "--pid", str(one.pid)).returncode == 0
        assert one.stdin is not None
        one.stdin.close()
        assert one.wait(30) == 0
        wait_until(lambda: set(rows(tmp_path)) == {"a"})


def test_a_file_can_be_checked_alone(tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text(entry("a", "${NOT_SET_ANYWHERE}"))
    found = defserve(tmp_path, "--check")
    assert found.returncode == 0
    assert found.stdout == (
        f"{tmp_path / 'mgp.toml'} is valid: 1 server\nnote: a is not started here: NOT_SET_ANYWHERE is not set\n"
    )
    told = json.loads(defserve(tmp_path, "--check", "--json").stdout)
    assert (told["valid"], told["servers"], told["unset"]) == (True, ["a"], {"a": ["NOT_SET_ANYWHERE"]})
    assert "--json goes with --check" in defserve(tmp_path, "--json").stderr
    (tmp_path / "mgp.toml").write_text("[[servers]]\nid = 'a'\n")
    refused = defserve(tmp_path, "--check", "--json")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert "neither a command nor a url" in json.loads(refused.stdout)["problem"]
    wrong = defserve(tmp_path, "--check")
    assert wrong.returncode == 1
    assert "has neither a command nor a url" in wrong.stderr


@for_each_row(
    ("command", "fix"),
    [
        ("python notes.py", 'write command = "python" and args = ["notes.py"]'),
        ("no-such-program", "install it, or give its full path"),
        ("${NO_SUCH_SETTING:-no-such-program}", "install it, or give its full path"),
    ],
)
def test_a_program_that_is_not_here_is_a_warning_of_check(tmp_path: Path, command: str, fix: str) -> None:
    file = tmp_path / "mgp.toml"
    file.write_text(f"[[servers]]\nid = 'a'\ncommand = '{command}'\n")
    problem = f"a cannot start: there is no program {command!r}"
    assert f"\nwarning: {file}:1: {problem}\n  fix: {fix}\n" in defserve(tmp_path, "--check").stdout
    (warning,) = json.loads(defserve(tmp_path, "--check", "--json").stdout)["warnings"]
    assert (warning["problem"], warning["fix"]) == (problem, fix)


SECRETIVE = '[[servers]]\nid = "vault"\nurl = "http://127.0.0.1:9/mcp"\n'


@for_each_row(
    ("settings", "server", "words", "credential"),
    [
        ("", 'auth_token = "t"', (), "auth_token"),
        ("", 'headers = {X-Api-Key = "t"}', ("--on", "http://127.0.0.1:8000/mcp"), "headers.X-Api-Key"),
        ('on = "https://desk.example/mcp"', 'auth_token = "t"', (), "auth_token"),
        ("", 'headers = {Accept-Language = "de"}', (), ""),
        ("", 'auth_token = "t"', ("--on", "stdio:"), ""),
        ('keys = "keys.json"', 'auth_token = "t"', (), ""),
        ('default_policy = "opt-in"', 'auth_token = "t"', (), ""),
        ("", 'auth_token = "t"\ndefault_policy = "opt-in"', (), ""),
        ("", 'auth_token = "t"\nenabled = false', (), ""),
    ],
)
def test_check_warns_of_a_server_that_everybody_may_call_with_your_credentials(
    tmp_path: Path, settings: str, server: str, words: tuple[str, ...], credential: str
) -> None:
    (tmp_path / "mgp.toml").write_text(f"[kernel]\n{settings}\n{SECRETIVE}{server}\n")
    out = defserve(tmp_path, "--check", *words).stdout
    assert ("warning:" in out) is bool(credential)
    assert not credential or f"can call vault with your credentials ({credential}): [kernel] has no keys" in out


def test_a_kernel_that_starts_open_says_so(tmp_path: Path) -> None:
    with kernel(tmp_path, f'{SECRETIVE}auth_token = "t"') as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert told.startswith("warning: ")
        assert "anyone who reaches http://127.0.0.1:0/mcp can call vault with your credentials" in told
        assert process.stderr.readline().startswith('  fix: write keys = "keys.json" in [kernel]')


def test_an_imported_file_can_be_checked_at_once(tmp_path: Path) -> None:
    settings = {"mcpServers": {"x": {"command": "x", "env": {"API_KEY": "hunter2"}}}}
    (tmp_path / ".mcp.json").write_text(json.dumps(settings))
    made = defserve(tmp_path, "import", ".mcp.json")
    assert "hunter2" not in made.stdout + made.stderr
    assert "set these before the kernel starts: API_KEY" in made.stderr
    (tmp_path / "mgp.toml").write_text(made.stdout)
    assert "API_KEY is not set" in defserve(tmp_path, "--check").stdout


def test_the_schema_is_printed(tmp_path: Path) -> None:
    assert json.loads(defserve(tmp_path, "schema").stdout)["title"] == "mgp.toml"


def test_the_help_says_what_each_action_does(tmp_path: Path) -> None:
    told = defserve(tmp_path, "--help").stdout.partition("actions:\n")[2].partition("\n\n")[0]
    assert {line.split()[0] for line in told.splitlines()} == {*list_kernel_commands(), *FILE_ACTIONS}
    assert all(len(line.split()) > 3 for line in told.splitlines())
