"""The local token as a person meets it: a real server on a loopback port, and our own commands, which find the key."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

import defserve as package
from tests.cli.running import Run
from tests.waiting import wait_until

FRAMEWORK = str(Path(package.__file__).parents[1])
SHELF = '''
from defserve import Server, dangerous

server = Server("shelf", "1")

@server.tool
@dangerous
def burn(title: str) -> str:
    """Burn a book."""
    return f"burnt {title}"

@server.tool
def count() -> int:
    return 3
'''


@pytest.fixture(autouse=True)
def own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run").mkdir(mode=0o700)
    for variable in ("HOME", "XDG_CONFIG_HOME", "DEFSERVE_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(folder / "run"))
    Path("shelf.py").write_text(SHELF)


@contextmanager
def serving(*words: str, on: str = "http://127.0.0.1:0/mcp") -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a server that a command line started, and its process."""
    command = [sys.executable, "-m", "defserve", words[0], "shelf.py", "--on", on, *words[1:]]
    log = Path("log.txt")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=stderr, env={**os.environ, "PYTHONPATH": FRAMEWORK}
        )
    try:
        wait_until(lambda: b"serving on" in log.read_bytes() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        (found,) = re.findall(rb"serving on (http://127\.0\.0\.1:\d+/mcp)", log.read_bytes())
        yield found.decode(), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert process.stdin is not None
        process.stdin.close()


def keys(folder: Path) -> list[Path]:
    return sorted((folder / "run" / "local-tokens").glob("127*"))


def burns(defserve: Run, on: str, *words: str) -> bool:
    outcome = defserve("call", on, "burn", "title=Emma", "--yes", *words)
    assert (outcome.code == 0) is ("burnt Emma" in outcome.out), outcome
    return outcome.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run", "--local-token"), ("dev",)], ids=" ".join)
def test_our_commands_connect_as_the_local_user(words: tuple[str, ...], defserve: Run, folder: Path):
    with serving(*words) as (on, _):
        (path,) = keys(folder)
        assert burns(defserve, on)
        assert burns(defserve, on.replace("127.0.0.1", "localhost"))
        assert burns(defserve, on.replace("http", "ws"))
        key = path.read_text()
        assert key not in Path("log.txt").read_text()
        # Who does not show it is a stranger, and served as one.
        path.unlink()
        refused = defserve("call", on, "burn", "title=Emma", "--yes")
        assert refused.code != 0 and "--local-token" in refused.err
        assert defserve("call", on, "count").out == "3\n"
        assert defserve("call", on, "count", "--token", "wrong").code != 0
        shown = defserve("call", on, "burn", "title=Emma", "--yes", "--token", key)
        assert shown.out == "burnt Emma\n", (shown, Path("log.txt").read_text())
    assert keys(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run",), ("dev", "--no-local-token")], ids=" ".join)
def test_without_a_local_token_everybody_on_this_machine_is_a_stranger(
    words: tuple[str, ...], defserve: Run, folder: Path
):
    with serving(*words) as (on, _):
        assert keys(folder) == []
        refused = defserve("call", on, "burn", "title=Emma", "--yes")
        assert refused.code != 0 and "--local-token" in refused.err
        assert defserve("call", on, "count").out == "3\n"


@pytest.mark.slow
def test_dev_keeps_its_key_when_the_code_changes(defserve: Run, folder: Path):
    with serving("dev") as (on, _):
        (path,) = keys(folder)
        before = path.read_text()
        Path("shelf.py").write_text(SHELF.replace("return 3", "return 4"))
        wait_until(lambda: defserve("call", on, "count").out == "4\n")
        assert path.read_text() == before
        # A busy machine may see one change of a file as two: then a call may meet the second new child as it starts.
        wait_until(lambda: burns(defserve, on))
        # Also if somebody has tidied up the folder of the key.
        path.unlink()
        Path("shelf.py").write_text(SHELF.replace("return 3", "return 55"))
        wait_until(lambda: defserve("call", on, "count").out == "55\n")
        wait_until(lambda: burns(defserve, on, "--token", before))


@pytest.mark.slow
def test_the_key_of_a_server_that_was_killed_is_shown_to_nobody_and_opens_nothing(defserve: Run, folder: Path):
    with serving("run", "--local-token") as (on, process):
        (path,) = keys(folder)
        old = path.read_text()
        process.kill()
        process.wait(20)
    assert keys(folder) == [path]
    with serving("run", on=on):
        assert defserve("call", on, "count").out == "3\n", "it was shown the key of the server before it"
        assert keys(folder) == []
    with serving("run", "--local-token", on=on):
        assert path.read_text() != old
        assert burns(defserve, on)
        assert httpx2.post(on, headers={"authorization": f"Bearer {old}"}, json={}).status_code == 401


@pytest.mark.slow
def test_install_gives_a_client_a_key_that_outlives_the_server(defserve: Run, folder: Path):
    with serving("run", "--local-token") as (on, _):
        dry = defserve("install", on, "--client", "cursor", "--dry-run")
        (path,) = keys(folder)
        assert path.read_text() not in dry.out + dry.err and "(the local token)" in dry.out
        assert not (folder / "run" / "defserve" / "kept-local-tokens").exists()
        installed = defserve("install", on, "--client", "cursor")
        assert installed.code == 0 and path.read_text() not in installed.out + installed.err
    entry = json.loads((folder / "run" / ".cursor" / "mcp.json").read_text())["mcpServers"]["shelf"]
    assert entry["url"] == on
    assert re.fullmatch(r"Bearer [\w-]{43}", entry["headers"]["Authorization"])
    with serving("run", "--local-token", on=on):
        answer = httpx2.get(on, headers={**entry["headers"], "accept": "text/event-stream"})
        assert answer.status_code != 401


@pytest.mark.slow
def test_settings_that_others_share_get_no_key(defserve: Run, folder: Path):
    with serving("run", "--local-token") as (on, _):
        installed = defserve("install", on)
        assert installed.code == 0 and "shared" in installed.err
        assert "headers" not in json.loads(Path(".mcp.json").read_text())["mcpServers"]["shelf"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--on", "http://0.0.0.0:0/mcp", "--allow-host", "x", "--local-token"], "for callers on this machine"),
        (["--on", "unix:here.sock", "--local-token"], "cannot serve on"),
        (["--on", "unix:/tmp/x.sock", "--local-token"], "local_token needs a loopback address"),
        (["--on", "http://127.0.0.1:0/mcp", "--trust-same-user"], "trust_same_user is for unix sockets"),
        (["--on", "unix:/tmp/x.sock", "--trust-same-user", "--trusted-proxy"], "contradict each other"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_the_address_are_refused(words: list[str], problem: str, defserve: Run):
    refused = defserve("run", "shelf.py", *words)
    assert refused.code == 1 and problem in refused.err and "fix:" in refused.err
