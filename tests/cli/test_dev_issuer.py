"""`defserve dev-issuer`: signing in on this machine, typed as the page on sign-in says, with a browser that clicks."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

import pytest

from defserve.cli.commands import login
from defserve.client.signin.credentials import Keyring
from tests.auth.browsing import browse
from tests.cli.running import Run
from tests.listening import find_free_port
from tests.reader import commands, is_shown
from tests.test_docs import blocks, text_of


def section() -> str:
    found = re.search(r"^## Try it on this machine$(.*?)^## ", text_of("docs/sign-in.md"), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def ports() -> dict[str, str]:
    """The ports of the page → free ones."""
    with ExitStack() as stack:
        held = {port: stack.enter_context(_hold_free_port()) for port in ("8000", "9000")}
        return {port: str(one.getsockname()[1]) for port, one in held.items()}


def _hold_free_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", find_free_port()))


def put_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub("|".join(ports), lambda found: ports[found[0]], text)


@contextmanager
def running(*words: str) -> Generator[str]:
    """What a command that keeps running says until it listens."""
    command = [sys.executable, "-m", "defserve", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            while not said or not re.match(r"(serving|issuer) on ", said[-1]):
                line = process.stderr.readline()
                assert line, said
                said.append(line)
            yield "".join(said)
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture(autouse=True)
def _own_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that allows everything and clicks the first user, and a place for what is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(Keyring, "of_system", lambda: None)
    monkeypatch.setattr(login, "has_browser", lambda: True)

    def click_through(url: str) -> None:
        redirect = dict(parse_qsl(urlsplit(url).query))["redirect_uri"]
        urllib.request.urlopen(asyncio.run(browse(url, redirect)), timeout=30).read()

    def open_page(url: str) -> bool:
        Thread(target=click_through, args=(url,)).start()
        return True

    monkeypatch.setattr(login, "open_browser", open_page)


@pytest.mark.e2e
def test_the_section_about_this_machine_comes_true(folder: Path, ports: dict[str, str], defserve: Run):
    (code,) = blocks(section())
    (folder / "notes.py").write_text(put_ports(code, ports), encoding="utf-8")
    started, typed = (list(commands(put_ports(block, ports))) for block in blocks(section(), "console"))
    assert [command.split()[1] for command, _ in started] == ["dev-issuer", "run"]
    # The page has the usual port of the issuer, and does not name it.
    issuing, serving = (command.split()[1:] for command, _ in started)
    with running(*issuing, "--port", ports["9000"]) as issuer, running(*serving) as server:
        assert "FOR DEVELOPMENT ONLY" in issuer and f'issuer="http://127.0.0.1:{ports["9000"]}"' in issuer
        assert f"serving on http://127.0.0.1:{ports['8000']}/mcp" in server
        for command, shown in typed:
            status, out, err = defserve(*command.split()[1:])
            assert status == 0 and is_shown(shown, err + out), f"$ {command}\n{err}{out}"


SCOPED = """
from defserve import Server
from defserve.auth import OAuthProxy

auth = OAuthProxy(
    "oidc",
    issuer="http://127.0.0.1:9000",
    client_id="dev",
    client_secret="dev",
    url="http://127.0.0.1:8000/mcp",
    allow="*",
    optional_scopes=["notes.read", "notes.write"],
    scopes_for=lambda claims: ["notes.read"],
)
server = Server("notes", auth=auth)


@server.tool(scopes=["notes.read"])
def list_notes() -> str:
    return "none"


@server.tool(scopes=["notes.write"])
def add_note() -> str:
    return "added"
"""


@pytest.mark.e2e
def test_who_signed_in_is_told_which_scope_they_lack(folder: Path, ports: dict[str, str], defserve: Run):
    url, issuer = f"http://127.0.0.1:{ports['8000']}/mcp", ("dev-issuer", "bob@example.com", "--port", ports["9000"])
    (folder / "notes.py").write_text(put_ports(SCOPED, ports), encoding="utf-8")
    why = ("why", "token", "add_note", "--server", "notes.py")
    assert f"fix: sign in: defserve login {url}; or name a file: --token @FILE" in defserve(*why).err
    with running(*issuer), running("run", "notes.py", "--on", url):
        assert defserve("login", url, "--scope", "notes.read notes.write").code == 0
        err = defserve("call", url, "add_note").err
        assert "your sign-in may not use it (it has notes.read, and was not granted notes.write): " in err
        assert "defserve why token add_note --server SERVER.py" in err
        code, out, _ = defserve(*why)
        assert code == 5 and "  · rights: notes.read\n  ✗ needs scope notes.write: lacks it\n" in out
        assert "OAuthProxy(optional_scopes=…, scopes_for=…) says who gets it" in out
        assert defserve("why", "token", "list_notes", "--server", "notes.py").code == 0
        err = defserve("why", "bob@example.com", "add_note", "--server", "notes.py").err
        assert f"token is whoever signed in here with defserve login {url}" in err
        code, out, _ = defserve("doctor", "--auth", url)
        assert code == 0 and "Token of your sign-in\n" in out and "granted at sign-in: notes.read\n" in out


def test_an_address_is_answered_by_doctor_and_not_by_why(defserve: Run):
    err = defserve("why", "token", "add_note", "--server", "http://127.0.0.1:8000/mcp").err
    assert "fix: name its code: --server server.py" in err
    assert "defserve doctor --auth http://127.0.0.1:8000/mcp" in err


@pytest.mark.e2e
def test_after_a_restart_of_the_server_one_signs_in_again_and_tokens_count(
    folder: Path, ports: dict[str, str], defserve: Run
):
    """Sign-ins and registrations were in the memory of the process that has ended."""
    url, issuer = f"http://127.0.0.1:{ports['8000']}/mcp", ("dev-issuer", "ann@example.com", "--port", ports["9000"])
    (folder / "notes.py").write_text(put_ports(blocks(section())[0], ports), encoding="utf-8")
    with running(*issuer):
        for _ in range(2):
            with running("run", "notes.py", "--on", url):
                assert defserve("login", url).code == 0
                assert defserve("call", url, "whoami").out == "ann@example.com\n"
        with running("run", "notes.py", "--on", url):
            status, _, err = defserve("call", url, "whoami")
            assert status == 1 and f"defserve login {url}" in err
