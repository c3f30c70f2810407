"""Where sign-ins are kept, and that nobody else can read them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from defserve.client import SignInError
from defserve.client.link import HttpChallenge, canonicalize_url, get_sign_in_path, has_stored_sign_in
from defserve.client.signin.authorizer import ServerAuthorizer
from defserve.client.signin.credentials import (
    Credential,
    DpopProofKey,
    FileCredentialStore,
    Keyring,
    MemoryCredentialStore,
    Tokens,
    get_user_credential_store,
)
from defserve.client.signin.fetching import NetworkReach
from defserve.client.signin.issuer import ClientRegistration, IssuerMetadata
from defserve.errors import UsageError
from tests.client.signin.company import company
from tests.client.web import Exchange
from tests.rows import for_each_row
from tests.waiting import until

URL = "https://mcp.example/mcp"


def made(url: str = URL, **tokens: Any) -> Credential:
    issuer = IssuerMetadata("https://i.example", token_endpoint="https://i.example/t", revocation_endpoint="https://r")
    client = ClientRegistration("me", "s3cret", "client_secret_basic", "http://127.0.0.1:1/callback", 99.5, ("a",))
    kept = Tokens("acc3ss", "DPoP", ("a", "b"), 12.5, "r3fresh", **tokens)
    return Credential(url, url, issuer, client, kept, ("a", "b"), DpopProofKey(), NetworkReach.NETWORK)


class FakeBackend:
    """What the library `keyring` gives."""

    priority = 5

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service: str, key: str) -> str | None:
        if self.is_locked:
            raise RuntimeError("locked: acc3ss")
        return self.kept.get((service, key))

    def set_password(self, service: str, key: str, secret: str) -> None:
        if self.is_locked:
            raise RuntimeError("locked: acc3ss")
        self.kept[service, key] = secret

    def delete_password(self, service: str, key: str) -> None:
        del self.kept[service, key]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sign-ins"


def test_a_sign_in_is_kept_whole_in_a_file_that_only_its_owner_reads(folder: Path) -> None:
    store, credential = FileCredentialStore(folder, None), made()
    assert store.load_credential(URL) is None and not store.delete_credential(URL)
    store.store_credential(credential)
    found = store.load_credential(URL + "/")
    assert found is not None and found.key is not None and credential.key is not None
    assert found.key.kept == credential.key.kept
    assert (found.server, found.tokens, found.client, found.asked, found.reach) == (
        (credential.server, credential.tokens, credential.client, credential.asked, credential.reach)
    )
    assert found.issuer == credential.issuer and list(store.servers()) == [URL]
    path = get_sign_in_path(URL, folder)
    assert store.get_credential_path(URL) == str(path) and (
        path.stat().st_mode & 0o77,
        folder.stat().st_mode & 0o77,
    ) == (0, 0)
    assert store.delete_credential(URL) and store.load_credential(URL) is None and not path.exists()


def test_secrets_are_in_the_keyring_and_not_in_the_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    store = FileCredentialStore(folder, Keyring(backend))
    store.store_credential(made())
    text = get_sign_in_path(URL, folder).read_text()
    assert not any(secret in text for secret in ("acc3ss", "r3fresh", "s3cret", '"d"')) and len(backend.kept) == 1
    found = store.load_credential(URL)
    assert (
        found is not None and found.tokens == made().tokens and store.get_credential_path(URL) == "the system's keyring"
    )
    with pytest.raises(UsageError, match="in the system's keyring"):
        FileCredentialStore(folder, None).load_credential(URL)
    backend.is_locked = True
    with pytest.raises(UsageError, match="does not answer"):
        store.load_credential(URL)
    store.store_credential(made())
    assert "acc3ss" in get_sign_in_path(URL, folder).read_text() and "acc3ss" not in caplog.text
    assert store.delete_credential(URL) and not backend.kept
    store.delete_credential(URL)


def test_damaged_secrets_are_none_and_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    store = FileCredentialStore(folder, Keyring(backend))
    store.store_credential(made())
    (entry,) = backend.kept
    for damaged in ("{acc3ss", "[]"):
        backend.kept[entry] = damaged
        found = store.load_credential(URL)
        assert found is None or found.tokens is None
    for key in ({"kty": "EC"}, {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "d": "AA"}):
        backend.kept[entry] = json.dumps({"access_token": "acc3ss", "key": key})
        assert store.load_credential(URL) is None
    path = get_sign_in_path(URL, folder)
    store = FileCredentialStore(folder, None)
    store.store_credential(made())
    path.write_text(json.dumps({**json.loads(path.read_text()), "reach": -1}))
    assert store.load_credential(URL) is None
    assert caplog.text.count("is damaged") == 3 and "acc3ss" not in caplog.text


def test_two_folders_have_two_sign_ins_to_one_server_in_one_keyring(tmp_path: Path) -> None:
    keyring = Keyring(FakeBackend())
    home, work = (FileCredentialStore(tmp_path / name, keyring) for name in ("home", "work"))
    for store, token in ((home, "mine"), (work, "theirs")):
        store.store_credential(replace(made(), tokens=Tokens(token)))
    for store, token in ((home, "mine"), (work, "theirs")):
        found = store.load_credential(URL)
        assert found is not None and found.tokens is not None and found.tokens.access_token == token
    assert home.delete_credential(URL) and work.load_credential(URL) is not None


def test_the_keyring_of_the_system_counts_only_if_it_keeps_something(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = pytest.importorskip("keyring")
    backend = FakeBackend()
    monkeypatch.setattr(keyring, "get_keyring", lambda: backend)
    assert Keyring.of_system() is not None
    backend.priority = 0
    assert Keyring.of_system() is None
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert Keyring.of_system() is None


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_what_others_could_have_read_or_changed_is_not_used(folder: Path) -> None:
    store = FileCredentialStore(folder, None)
    store.store_credential(made())
    get_sign_in_path(URL, folder).chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        store.load_credential(URL)
    get_sign_in_path(URL, folder).chmod(0o600)
    folder.chmod(0o755)
    for use in (lambda: store.load_credential(URL), lambda: store.store_credential(made())):
        with pytest.raises(UsageError, match="others can use"):
            use()


def test_a_file_that_is_broken_newer_or_of_another_server_is_no_sign_in(folder: Path) -> None:
    store = FileCredentialStore(folder, None)
    store.store_credential(made())
    path = get_sign_in_path(URL, folder)
    path.rename(get_sign_in_path("https://other.example/mcp", folder))
    assert store.load_credential("https://other.example/mcp") is None, "a token for one server is not one for another"
    for content in (b"", b"[]", b"\xff", b'{"format": 1}', b'{"format": 1, "server": 7, "resource": "x"}'):
        path.write_bytes(content)
        path.chmod(0o600)
        assert store.load_credential(URL) is None
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(UsageError, match="format 2"):
        store.load_credential(URL)


def test_a_file_that_cannot_be_read_hides_no_other_sign_in(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileCredentialStore(folder, None)
    store.store_credential(made())
    (folder / "0.json").write_text(json.dumps({"format": 2, "server": "https://other.example/mcp"}))
    (folder / "0.json").chmod(0o600)
    assert list(store.servers()) == [URL]
    assert "format 2" in caplog.text


@for_each_row(
    ("one", "other", "is_same"),
    [
        (URL, "https://MCP.example:443/mcp/", True),
        ("http://localhost:80", "http://localhost/", True),
        (URL, "http://mcp.example/mcp", False),
        (URL, "https://mcp.example/MCP", False),
        (URL, "https://mcp.example:8443/mcp", False),
        (URL, URL + "?tenant=1", False),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp/", True),
        ("http://[", "http://[", True),
        ("wss://a.example/mcp", "https://a.example:443/mcp", True),
        ("ws://localhost:80/mcp", "http://localhost/mcp", True),
        ("ws://a.example/mcp", "https://a.example/mcp", False),
    ],
)
def test_which_addresses_are_one_server(one: str, other: str, is_same: bool) -> None:
    assert (canonicalize_url(one) == canonicalize_url(other)) is is_same
    assert (get_sign_in_path(one) == get_sign_in_path(other)) is is_same


def test_the_users_own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(Keyring, "of_system", lambda: None)
    assert not has_stored_sign_in(URL)
    get_user_credential_store().store_credential(made())
    assert has_stored_sign_in(URL) and str(tmp_path) in get_user_credential_store().get_credential_path(URL)


@pytest.mark.anyio
async def test_two_that_renew_at_once_use_the_refresh_token_once(folder: Path) -> None:
    """Each refresh token counts once. Whoever comes second finds what the first one was given.

    A lock of a file is between open files, so two stores of one process stand for two processes.
    """
    async with company() as there:
        there.refreshing["r3fresh"] = "read"
        issuer, kept = IssuerMetadata(there.origin), Tokens("old", refresh_token="r3fresh")
        credential = Credential(
            there.url, there.url, issuer, ClientRegistration("me"), kept, reach=NetworkReach.MACHINE
        )
        FileCredentialStore(folder, None).store_credential(credential)
        answer = there.token

        async def answer_late(exchange: Exchange) -> None:
            # Until then, the other one still believes in the old token.
            await until(lambda: len(there.list_requested_uris("/.well-known/oauth-authorization-server")) == 2)
            await answer(exchange)

        there.token = answer_late
        both = [ServerAuthorizer(there.url, FileCredentialStore(folder, None), None) for _ in range(2)]
        refusal = HttpChallenge(401, {}, "Bearer old", ["127.0.0.1"])
        for each in both:
            assert await each.headers("POST", there.url) == {"authorization": "Bearer old"}
        assert await asyncio.gather(*(each.handle_challenge(refusal) for each in both)) == [True, True]
        assert [await each.headers("POST", there.url) for each in both] == [{"authorization": "Bearer access-1"}] * 2
        assert len(there.forms) == 1
        found = FileCredentialStore(folder, None).load_credential(there.url)
        assert found is not None and found.tokens is not None and found.tokens.refresh_token == "refresh-1"


@pytest.mark.anyio
async def test_a_token_that_was_not_bound_to_the_key_beside_it_is_renewed_as_one_that_is_not() -> None:
    async with company() as there:
        there.refreshing["r3fresh"] = "read"
        issuer = IssuerMetadata(there.origin, token_endpoint=f"{there.origin}/token")
        kept = Tokens("old", refresh_token="r3fresh", expires_at=1.0)
        store, me = MemoryCredentialStore(), ClientRegistration("me")
        credential = Credential(there.url, there.url, issuer, me, kept, reach=NetworkReach.MACHINE, key=DpopProofKey())
        store.store_credential(credential)
        authorizer = ServerAuthorizer(there.url, store, None)
        assert await authorizer.headers("POST", there.url) == {"authorization": "Bearer access-1"}


@pytest.mark.anyio
async def test_many_that_share_a_store_in_memory_renew_once_and_do_not_wait_for_each_other_for_ever() -> None:
    async with company() as there:
        there.refreshing["r3fresh"] = "read"
        issuer, kept = IssuerMetadata(there.origin), Tokens("old", refresh_token="r3fresh")
        store = MemoryCredentialStore()
        store.store_credential(
            Credential(there.url, there.url, issuer, ClientRegistration("me"), kept, reach=NetworkReach.MACHINE)
        )
        # More than there are threads for the usual work of a loop.
        all_of_them = [ServerAuthorizer(there.url, store, None) for _ in range(40)]
        for each in all_of_them:
            await each.headers("POST", there.url)
        refusal = HttpChallenge(401, {}, "Bearer old", ["127.0.0.1"])
        assert all(await asyncio.gather(*(each.handle_challenge(refusal) for each in all_of_them)))
        assert len(there.forms) == 1


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_made_is_an_error_of_the_sign_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with company() as there:
        issuer, kept = IssuerMetadata(there.origin), Tokens("old", refresh_token="r3fresh", expires_at=1.0)
        credential = Credential(
            there.url, there.url, issuer, ClientRegistration("me"), kept, reach=NetworkReach.MACHINE
        )

        class Kept(FileCredentialStore):
            def load_credential(self, server: str) -> Credential | None:
                return credential

        authorizer = ServerAuthorizer(there.url, Kept(tmp_path / "file" / "kept", None), None)
        with pytest.raises(SignInError, match="cannot be renewed"):
            await authorizer.headers("POST", there.url)
