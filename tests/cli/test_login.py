"""`defserve login` and `defserve logout`, and the commands that use what they keep."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from defserve.cli.commands import login
from defserve.client.signin.credentials import Keyring
from tests.cli.running import Run
from tests.client.signin.company import Company, company


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(Keyring, "of_system", lambda: None)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    """A company on a loop of its own. The browser of this machine says yes to it."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(company()) as made:

        def browser(url: str) -> bool:
            location = made.say_yes(url)
            Thread(target=lambda: urllib.request.urlopen(location, timeout=30).read()).start()
            return True

        monkeypatch.setattr(login, "open_browser", browser)
        yield made


def test_who_signed_in_can_call_tools_until_they_sign_out(defserve: Run, there: Company) -> None:
    code, _, err = defserve("call", there.url, "add")
    assert code == 1 and f"defserve login {there.url}" in err
    code, out, err = defserve("login", there.url)
    assert code == 0 and "Signed in to pretend" in out and there.origin in out and "/authorize?" in err
    assert defserve("call", there.url, "add")[:2] == (0, "3\n")
    assert defserve("list", there.url).code == 0
    assert len(there.visits) == 1
    code, out, _ = defserve("login", "--list")
    assert code == 0 and there.url in out and "read" in out and "renewed by itself" in out
    code, out, err = defserve("logout", there.url)
    assert (code, out, err) == (0, f"Signed out of {there.url}\n", "")
    assert there.revoked == ["refresh-1", "access-1"]
    assert defserve("call", there.url, "add").code == 1
    assert defserve("login", "--list").out == "You are not signed in anywhere.\n"
    assert defserve("logout", there.url).code == 1 and defserve("logout").code == 1


def test_status_asks_the_server_and_json_has_no_secrets(defserve: Run, there: Company) -> None:
    assert defserve("login", "--status", there.url).code == 1
    code, out, _ = defserve("login", there.url, "--json")
    assert code == 0 and json.loads(out)["scopes"] == ["read"]
    code, out, _ = defserve("login", "--status", there.url, "--json")
    assert code == 0 and json.loads(out)[0]["problem"] is None
    assert "The servers still accept them." in defserve("login", "--status", there.url).out
    there.tokens.clear()
    there.refreshing.clear()
    code, out, _ = defserve("login", "--status", there.url)
    assert code == 1 and "refused by the server; sign in again" in out
    assert "access-" not in out
    code, out, _ = defserve("login", "--list", there.url)
    assert code == 1 and "sign in again" in out


def test_signing_in_again_gets_new_tokens_with_the_same_registration(defserve: Run, there: Company) -> None:
    assert defserve("login", there.url).code == defserve("login", there.url).code == 0
    assert len(there.registered) in (1, 2), "the port of before may be taken by somebody else"
    there.token_fields["scope"] = "read write"
    code, _, err = defserve("login", there.url, "--scope", "write  admin")
    assert code == 0 and err.endswith(f"note: {there.origin} did not grant admin\n")
    assert [visit["scope"] for visit in there.visits] == ["read", "read", "read write admin"]
    assert defserve("logout", "--all").code == 0


def test_a_client_of_ones_own_and_its_secret(defserve: Run, there: Company, folder: Path) -> None:
    (folder / "secret").write_text("s3cret\n")
    code, out, err = defserve("login", there.url, "--client-id", "mine", "--client-secret-file", "secret")
    assert code == 0 and not there.registered and there.visits[0]["client_id"] == "mine"
    assert "s3cret" not in out + err
    for content in (b"", b"two words", b"\xff", b"x" * 20_000):
        (folder / "secret").write_bytes(content)
        code, _, err = defserve("login", there.url, "--client-id", "mine", "--client-secret-file", "secret")
        assert code != 0 and "must contain exactly one secret" in err
    assert defserve("login", there.url, "--client-secret-file", "missing").code != 0


def test_without_a_browser_the_address_is_typed(defserve: Run, there: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    shown = login._show  # pyright: ignore[reportPrivateUsage]

    def typed_by_hand(url: str, *, is_opened: bool) -> None:
        shown(url, is_opened=is_opened)
        os.write(write, (there.say_yes(url) + "\n").encode())

    monkeypatch.setattr(login, "_show", typed_by_hand)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, err = defserve("login", there.url, "--no-browser")
    os.close(write)
    assert code == 0 and "Signed in to" in out and "To sign in, open this address" in err


def test_a_server_that_does_not_ask_is_signed_in_to_if_it_says_where(defserve: Run, there: Company) -> None:
    class Anyone(dict[str, str]):
        def get(self, *_: Any) -> str:
            return ""

    there.tokens = Anyone()
    assert defserve("login", there.url).code == 0 and len(there.visits) == 1
    defserve("logout", there.url)
    there.resource.clear()
    there.issuer.clear()
    code, _, err = defserve("login", there.url)
    assert code == 1 and "answers without a sign-in" in err


def test_a_scope_that_is_missing_is_named_with_the_command_that_helps(defserve: Run, there: Company) -> None:
    there.wanted["tools/call"] = "write"
    defserve("login", there.url)
    code, _, err = defserve("call", there.url, "add")
    assert code == 1 and f'defserve login {there.url} --scope "write"' in err
    assert defserve("login", there.url, "--scope", "write").code == 0
    assert defserve("call", there.url, "add").code == 0


def test_a_tool_that_is_not_listed_may_need_a_scope_that_the_sign_in_lacks(defserve: Run, there: Company) -> None:
    defserve("login", there.url)
    code, _, err = defserve("call", there.url, "adt")
    assert code == 5 and "pretend shows you no tool 'adt'\n  fix: did you mean 'add'? or your sign-in may not" in err
    assert f"defserve login {there.url} --scope SCOPE" in err
    there.tokens["mine"] = "read"
    code, _, err = defserve("call", there.url, "write_note", "--token", "mine")
    assert code == 5 and "fix: you see add; or this token may not use it: " in err
    assert "defserve why token write_note --token @FILE" in err and "mine" not in err


def test_what_cannot_be_revoked_is_said_and_forgotten(defserve: Run, there: Company) -> None:
    del there.issuer["revocation_endpoint"]
    defserve("login", there.url)
    code, _, err = defserve("logout")
    assert code == 0 and "cannot revoke tokens" in err
    there.issuer["revocation_endpoint"] = f"{there.origin}/nowhere"
    defserve("login", there.url)
    code, _, err = defserve("logout", there.url)
    assert code == 0 and "not revoked" in err


def test_a_sign_in_that_counts_no_more_is_told_from_a_token_that_was_given(defserve: Run, there: Company) -> None:
    defserve("login", there.url)
    there.tokens.clear()
    there.refreshing.clear()
    code, _, err = defserve("call", there.url, "add")
    assert code == 1 and "no longer accepts the token from your sign-in (HTTP 401)\n" in err
    assert f"  fix: sign in again: defserve login {there.url}" in err
    assert "use another --token" in defserve("call", there.url, "add", "--token", "x").err


def test_a_server_that_has_moved_to_another_issuer_gets_nothing_of_the_old_one(defserve: Run, there: Company) -> None:
    defserve("login", there.url)
    there.tokens.clear()
    there.issuer["issuer"] = f"{there.origin}/new"
    there.pages["/.well-known/oauth-authorization-server/new"] = there.issuer
    there.resource["authorization_servers"] = [f"{there.origin}/new"]
    forms = len(there.forms)
    code, _, err = defserve("call", there.url, "add")
    assert code == 1 and f"another issuer than when you signed in: {there.origin}/new, not {there.origin}\n" in err
    assert f"fix: if that is right, sign in again: defserve login {there.url}" in err
    assert len(there.forms) == forms
    assert defserve("login", there.url).code == defserve("call", there.url, "add").code == 0


def test_a_token_that_has_ended_and_an_issuer_that_is_away(defserve: Run, there: Company) -> None:
    there.token_fields["expires_in"] = 0
    defserve("login", there.url)
    there.token_errors = [{"error": "temporarily_unavailable"}] * 9
    code, _, err = defserve("call", there.url, "add")
    assert code == 1 and f"the sign-in to {there.url} has to be renewed, which fails: " in err
    assert f"fix: try again later, or sign in again: defserve login {there.url}" in err


def test_wrong_usage_is_explained(defserve: Run) -> None:
    assert "fix: defserve login http://localhost:80/mcp" in defserve("login", "localhost:80/mcp").err
    assert "fix: defserve login https://a.example/mcp" in defserve("login", "a.example/mcp").err
    for words in ((), ("server.py",), ("unix:/tmp/mcp.sock",)):
        code, _, err = defserve("login", *words)
        assert code == 1 and "defserve login https://" in err
    assert "not a port" in defserve("login", "https://a.example/mcp", "--port", "0").err
    for unsafe in ("http://mcp.example/mcp", "ws://mcp.example/mcp"):
        assert "only https is safe" in defserve("login", unsafe).err
