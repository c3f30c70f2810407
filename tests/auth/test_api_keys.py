"""API keys: shown once, kept hashed, good for what they say and as often; on HTTP and, asked for, in messages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from defserve import Auth, Context, Server, UsageError
from defserve.auth import IssuerUnavailable, auth_options
from defserve.auth.api_keys import TOUCH, ApiKeys, KeyFile, find_ended_credentials
from defserve.auth.bearer_tokens import TokenVerifier
from defserve.auth.principals import ApiKeyPrincipal, scope_of
from defserve.protocols.mcp.numbered_errors import NumberedErrors
from defserve.stores.store import (
    API_KEYS_SPACE,
    MemoryStore,
    Space,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
    StoreUnavailable,
)
from tests.auth.web import client, post
from tests.raw import HANDSHAKE, STATELESS, Json, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PEPPER = "0123456789abcdef0123456789abcdef"
LATEST = HANDSHAKE[-1]


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["file", "memory", "sqlite"])
def keys(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[ApiKeys]:
    store: Any = {
        "file": tmp_path / "keys.json",
        "memory": MemoryStore(),
        "sqlite": f"sqlite:///{tmp_path / 'keys.db'}",
    }[request.param]
    yield (keys := ApiKeys(store, pepper=PEPPER, server="notes", clock=clock))
    asyncio.run(keys.close())


async def test_a_key_that_this_version_cannot_read_lets_nobody_in_and_is_not_called_bad(tmp_path: Path) -> None:
    keys = ApiKeys(file := tmp_path / "keys.json", pepper=PEPPER, server="notes")
    token, _ = await keys.create("alice", permissions=["ToolInvoke(add)"])
    file.write_text(file.read_text().replace("ToolInvoke(add)", "OfANewerVersion"))
    with pytest.raises(IssuerUnavailable):
        await keys.verify(token)


async def test_a_key_that_is_damaged_is_named_and_can_be_revoked(keys: ApiKeys) -> None:
    damaged, good = (await keys.create("alice")).key.id, (await keys.create("bob")).key
    await keys._store.change(StoreChange(API_KEYS_SPACE, {damaged: b'{"id": 7}'}))
    with pytest.raises(StoreCorrupt, match=damaged):
        await keys.keys()
    assert await keys.revoke(damaged) and not await keys.revoke(damaged)
    assert [key.id for key in await keys.keys()] == [good.id]


@for_each_row(
    ("member", "value"), [("expires_at", "2027-01-01"), ("hash", None), ("principal", 5), ("permissions", [1])]
)
async def test_a_key_with_a_value_of_another_type_is_damaged_and_touches_no_other(
    keys: ApiKeys, member: str, value: object
) -> None:
    damaged, good = await keys.create("alice"), (await keys.create("bob")).key
    edited = {**asdict(damaged.key), member: value}
    await keys._store.change(StoreChange(API_KEYS_SPACE, {damaged.key.id: json.dumps(edited).encode()}))
    with pytest.raises(IssuerUnavailable, match=damaged.key.id):
        await keys.check_token(damaged.token)
    assert await keys.revoke(good.id)
    shown = [f"key:{id}" for id in (damaged.key.id, good.id)]
    assert await find_ended_credentials(keys, shown) == {f"key:{good.id}"}


@for_each_row("setting", [{"expires_in": float("nan")}, {"per_minute": 0}, {"expires_in": -1.0}])
async def test_a_key_has_no_limit_that_means_nothing(keys: ApiKeys, setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is not positive"):
        await keys.create("alice", **setting)


# -- keys ------------------------------------------------------------------------------------------------


async def test_a_key_is_its_holder_s(keys: ApiKeys) -> None:
    token, key = await keys.create("alice", permissions=["ToolInvoke(add)"], scopes="notes:read", per_minute=5)
    holder = await keys.verify(token)
    assert isinstance(holder, ApiKeyPrincipal)
    assert (holder.id, holder.kind, holder.key, holder.per_minute) == ("alice", "token", key.id, 5)
    assert holder.scopes == {"tool:invoke:add", "notes:read"}
    assert isinstance(keys, TokenVerifier)
    await keys.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.partition(".")[0],
        lambda token: token.partition(".")[2],
        lambda token: f"{'0' * 16}.{token.partition('.')[2]}",
        lambda token: token + "=",
        lambda token: token.upper(),
        lambda token: "\ud800",
        lambda token: "",
    ],
)
async def test_any_other_token_is_nobody_s(keys: ApiKeys, spoil: Callable[[str], str]) -> None:
    token, _ = await keys.create("alice")
    assert await keys.verify(spoil(token)) is None
    await keys.close()


@pytest.mark.req("GGEN-AUTH-1")
async def test_a_key_is_kept_as_a_keyed_sha_256_with_its_times(tmp_path: Path, clock: Clock) -> None:
    keys = ApiKeys(tmp_path / "keys.json", pepper=PEPPER, clock=clock)
    token, key = await keys.create("alice")
    text = (tmp_path / "keys.json").read_text()
    (kept,) = json.loads(text)["keys"].values()
    assert token not in text and token.partition(".")[2] not in text
    assert kept["hash"] == hmac.new(PEPPER.encode(), token.encode(), hashlib.sha256).hexdigest()
    assert (kept["created_at"], kept["last_used"]) == (clock.now, None)
    clock.now += 5
    assert await keys.verify(token)
    assert (await keys.keys())[0].last_used == clock.now
    assert key.last_used is None


async def test_a_busy_key_does_not_write_at_every_call(keys: ApiKeys, clock: Clock) -> None:
    token, _ = await keys.create("alice")
    first = clock.now
    for _ in range(3):
        assert await keys.verify(token)
        clock.now += TOUCH / 3
    assert (await keys.keys())[0].last_used == first
    assert await keys.verify(token)
    assert (await keys.keys())[0].last_used == clock.now
    await keys.close()


async def test_the_use_of_a_key_is_noted_though_the_clock_was_set_back(keys: ApiKeys, clock: Clock) -> None:
    token, _ = await keys.create("alice")
    assert await keys.verify(token)
    clock.now -= 86_400
    assert await keys.verify(token)
    assert (await keys.keys())[0].last_used == clock.now
    await keys.close()


async def test_two_keys_are_never_the_same_and_have_256_bits(keys: ApiKeys) -> None:
    tokens = {(await keys.create("alice")).token for _ in range(20)}
    secrets = {token.partition(".")[2] for token in tokens}
    assert len(secrets) == 20 and {len(secret) for secret in secrets} == {43}
    await keys.close()


async def test_a_key_expires(keys: ApiKeys, clock: Clock) -> None:
    token, key = await keys.create("alice", expires_in=60)
    assert key.expires_at == clock.now + 60
    assert await keys.verify(token)
    clock.now += 60
    assert await keys.verify(token) is None
    await keys.close()


async def test_a_revoked_key_is_good_for_nothing(keys: ApiKeys) -> None:
    (token, key), (other, _) = await keys.create("alice"), await keys.create("alice")
    assert await keys.revoke(key.id) is True
    assert await keys.verify(token) is None
    assert await keys.verify(other) is not None
    assert await keys.revoke(key.id) is False
    assert len(await keys.keys()) == 1
    await keys.close()


async def test_a_key_that_is_revoked_while_it_is_used_does_not_come_back(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    keys = ApiKeys(file, pepper=PEPPER)
    token, key = await keys.create("alice")
    change = file.change

    async def revoked_first(wanted: StoreChange) -> bool:
        await change(StoreChange("keys", drop=(key.id,)))
        return await change(wanted)

    file.change = revoked_first
    await keys.verify(token)
    assert await keys.keys() == []


async def test_another_pepper_knows_no_key(tmp_path: Path) -> None:
    token, _ = await ApiKeys(tmp_path / "keys.json", pepper=PEPPER).create("alice")
    assert await ApiKeys(tmp_path / "keys.json", pepper=PEPPER[::-1]).verify(token) is None


async def test_the_pepper_comes_from_the_environment_or_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DEFSERVE_KEYS_PEPPER", raising=False)
    token, _ = await ApiKeys(tmp_path / "keys.json").create("alice")
    pepper = tmp_path / "defserve" / "keys.pepper"
    assert os.name != "posix" or stat.S_IMODE(pepper.stat().st_mode) == 0o600
    assert await ApiKeys(tmp_path / "keys.json").verify(token)
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", PEPPER)
    assert await ApiKeys(tmp_path / "keys.json").verify(token) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"principal": "local"}, "cannot be called 'local'"),
        ({"principal": ""}, "cannot be called"),
        ({"permissions": ["ToolInvoke"]}, "'ToolInvoke' is not a permission"),
        ({"permissions": ["ToolInvoke(a b)"]}, "is not a permission"),
        ({"permissions": ["ToolsListAll(x)"]}, "is not a permission"),
        ({"permissions": ["Root"]}, "is not a permission"),
        ({"scopes": ['"']}, "is not a scope"),
        ({"per_minute": 0}, "is not positive"),
        ({"expires_in": -1}, "is not positive"),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    keys = ApiKeys(tmp_path / "keys.json", pepper=PEPPER)
    with pytest.raises(UsageError, match=complaint):
        await keys.create(**{"principal": "alice", **options})
    assert not (tmp_path / "keys.json").exists()


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        ApiKeys(MemoryStore(), pepper="salt")


# -- the file --------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
async def test_the_file_is_private_and_one_that_is_not_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token, _ = await ApiKeys(path, pepper=PEPPER).create("alice")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(IssuerUnavailable, match="can be read by others"):
        await ApiKeys(path, pepper=PEPPER).verify(token)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files to others")
async def test_a_file_that_root_changes_still_belongs_to_the_user_of_the_server(tmp_path: Path) -> None:
    path, lock = tmp_path / "keys.json", tmp_path / "keys.json.lock"
    _, key = await ApiKeys(path, pepper=PEPPER).create("alice")
    os.chown(path, 1234, 1235)
    lock.unlink()
    assert await ApiKeys(path, pepper=PEPPER).revoke(key.id)
    assert [(file.stat().st_uid, file.stat().st_gid) for file in (path, lock)] == [(1234, 1235)] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="links need rights there")
async def test_a_key_that_is_revoked_through_a_link_is_revoked(tmp_path: Path) -> None:
    path, link = tmp_path / "real" / "keys.json", tmp_path / "keys.json"
    path.parent.mkdir()
    link.symlink_to(path)
    keys = ApiKeys(path, pepper=PEPPER)
    token, key = await keys.create("alice")
    assert await ApiKeys(link, pepper=PEPPER).revoke(key.id)
    assert await keys.verify(token) is None
    assert link.is_symlink() and not link.with_name("keys.json.lock").exists()


async def test_a_spoiled_file_lets_nobody_in_and_is_not_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    keys = ApiKeys(path, pepper=PEPPER)
    token, _ = await keys.create("alice")
    path.write_text("{")
    with pytest.raises(IssuerUnavailable, match="is damaged"):
        await keys.verify(token)
    assert "is damaged" in caplog.text
    with pytest.raises(Exception, match="is damaged"):
        await keys.create("bob")
    assert path.read_text() == "{"


def spoil(path: Path) -> None:
    path.write_text('{"keys": ')


def open_to_others(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
@pytest.mark.parametrize(("harm", "fix"), [(spoil, "restore .* from a backup"), (open_to_others, "chmod 600")])
async def test_nothing_serves_with_a_file_that_cannot_be_used(
    tmp_path: Path, harm: Callable[[Path], None], fix: str
) -> None:
    path = tmp_path / "keys.json"
    await ApiKeys(path, pepper=PEPPER).create("alice")
    harm(path)
    with pytest.raises(UsageError, match=fix):
        Server("s", auth=[ApiKeys(path, pepper=PEPPER)]).asgi()
    with pytest.raises(UsageError, match=fix):
        await asyncio.to_thread(Server("s", auth=Auth(ApiKeys(path, pepper=PEPPER), in_messages=True)).run)


async def test_a_server_may_start_before_its_first_key_is_made(tmp_path: Path) -> None:
    Server("s", auth=ApiKeys(tmp_path / "keys.json", pepper=PEPPER)).asgi()


# -- while the store is away -----------------------------------------------------------------------------


class FailingStore(MemoryStore):
    """A store that can be switched off."""

    is_away = False

    async def get(self, space: Space, names: Sequence[str]) -> dict[str, bytes]:
        if self.is_away:
            raise StoreUnavailable("The store cannot be reached")
        return await super().get(space, names)


async def test_while_keys_cannot_be_checked_clients_are_told_to_try_again_and_keep_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth_options, "LOOK_SECONDS", 0.0)
    store = FailingStore()
    keys = ApiKeys(store, pepper=PEPPER)
    token, _ = await keys.create("alice", permissions=["ToolsListAll"])
    async with client(Server("s", auth=keys)) as http:
        assert (await post(http, token, "tools/list")).status_code == 200
        store.is_away = True
        answer = await post(http, token, "tools/list")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "www-authenticate" not in answer.headers
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        store.is_away = False
        assert (await post(http, token, "tools/list")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_probes_look_at_the_keys_once_a_second_at_most() -> None:
    store = FailingStore()
    auth = Auth([ApiKeys(store, pepper=PEPPER)])
    assert await auth.is_ready()
    store.is_away = True
    assert await auth.is_ready()


async def test_a_key_in_a_message_that_cannot_be_checked_is_not_called_bad() -> None:
    store = FailingStore()
    keys = ApiKeys(store, pepper=PEPPER)
    token, _ = await keys.create("alice", permissions=["ToolInvoke(*)"])
    async with raw(Server("s", auth=Auth(keys, in_messages=True))) as peer:
        store.is_away = True
        answer = await ask(peer, token, "tools/list")
    assert "cannot be checked" in answer["error"]["message"]
    assert "server_not_ready" in answer["error"]["data"].values()


async def test_many_may_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    books = [ApiKeys(tmp_path / "keys.json", pepper=PEPPER) for _ in range(8)]
    await asyncio.gather(*(book.create(f"user{number}") for number, book in enumerate(books)))
    assert len(await books[0].keys()) == 8


async def test_a_file_that_is_never_let_go_of_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from defserve.auth import api_keys

    monkeypatch.setattr(api_keys, "LOCK_SECONDS", 0.0)
    file = api_keys.open_locked_file(tmp_path / "keys.json.lock", "lock")
    try:
        with pytest.raises(StoreBusy):
            await ApiKeys(tmp_path / "keys.json", pepper=PEPPER).create("alice")
    finally:
        os.close(file)


async def test_a_key_made_by_another_process_is_known_at_once(tmp_path: Path) -> None:
    serving, command = (ApiKeys(tmp_path / "keys.json", pepper=PEPPER) for _ in range(2))
    assert await serving.keys() == []
    token, key = await command.create("alice")
    assert await serving.verify(token)
    await command.revoke(key.id)
    assert await serving.verify(token) is None


# -- what they are good for ------------------------------------------------------------------------------


@for_each_row(
    ("permission", "scope"),
    [
        ("ToolInvoke(add)", "tool:invoke:add"),
        ("ToolInvoke(*)", "tool:invoke:*"),
        ("ToolRead(shop.find)", "tool:read:shop.find"),
        ("ToolsListAll", "tools:list"),
        ("AdminRead", "admin:read"),
        ("AdminWrite", "admin:write"),
    ],
)
def test_a_permission_is_a_scope(permission: str, scope: str) -> None:
    assert scope_of(permission) == scope


def served(keys: ApiKeys, **auth: Any) -> Server:
    server = Server(
        "keyed", "1", auth=Auth(keys, in_messages=True, **auth), extensions=[NumberedErrors()], confirm="never"
    )

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    def drop(ctx: Context) -> str:
        return f"dropped by {ctx.principal}"

    @server.resource("x://y")
    def y() -> str:
        return "y"

    return server


async def ask(peer: Raw, token: str | None, method: str, **params: Any) -> Json:
    """The reply to a request that carries a token."""
    auth = {} if token is None else {"auth": {"type": "bearer", "token": token}}
    id = f"{method}-{len(peer.heard)}"
    await peer.send({"jsonrpc": "2.0", "id": id, "method": method, "params": peer.with_meta(params), **auth})
    return await peer.reply_to(id)  # pyright: ignore[reportArgumentType]


async def call(peer: Raw, token: str | None, name: str = "add", **arguments: Any) -> Json:
    return await ask(peer, token, "tools/call", name=name, arguments=arguments)


async def listed(peer: Raw, token: str) -> list[str]:
    return [tool["name"] for tool in (await ask(peer, token, "tools/list"))["result"]["tools"]]


@pytest.fixture
def memory(clock: Clock) -> ApiKeys:
    return ApiKeys(MemoryStore(), pepper=PEPPER, clock=clock)


@pytest.mark.req("GGEN-AUTH-2")
@pytest.mark.parametrize(
    ("permissions", "seen", "called"),
    [
        ([], [], []),
        (["ToolInvoke(add)"], ["add"], ["add"]),
        (["ToolRead(add)"], ["add"], []),
        (["ToolsListAll"], ["add", "drop"], []),
        (["AdminRead"], ["add", "drop"], []),
        (["AdminWrite"], [], []),
        (["ToolsListAll", "ToolInvoke(drop)"], ["add", "drop"], ["drop"]),
        (["ToolInvoke(*)"], ["add", "drop"], ["add", "drop"]),
    ],
)
@pytest.mark.parametrize("version", [LATEST, STATELESS])
async def test_a_key_sees_and_calls_what_it_may(
    memory: ApiKeys, permissions: list[str], seen: list[str], called: list[str], version: str
) -> None:
    token, _ = await memory.create("alice", permissions=permissions)
    async with raw(served(memory), version) as peer:
        assert await listed(peer, token) == seen
        replies = {name: await call(peer, token, name, **given) for name, given in CALLS.items()}
        assert [name for name, reply in replies.items() if not _failed(reply)] == called


CALLS: dict[str, dict[str, int]] = {"add": {"a": 1, "b": 2}, "drop": {}}


def _failed(reply: Json) -> bool:
    return "error" in reply or reply["result"].get("isError", False)


async def test_an_admin_s_scope_is_one_that_policies_can_ask_for(memory: ApiKeys) -> None:
    token, _ = await memory.create("root", permissions=["AdminWrite"])
    holder = await memory.verify(token)
    assert holder is not None and not holder.missing(["admin:write"])


@pytest.mark.req("GGEN-AUTH-3")
async def test_who_is_unknown_gets_32004_and_who_may_not_32005(memory: ApiKeys, clock: Clock) -> None:
    token, _ = await memory.create("alice", permissions=["ToolsListAll"], expires_in=60)
    async with raw(served(memory), LATEST) as peer:
        for shown in (None, "nonsense", "with space", token[:-1] + "~"):
            error = (await call(peer, shown, a=1, b=2))["error"]
            assert (error["code"], error["data"]["error_type"]) == (-32004, "AuthenticationError")
        error = (await call(peer, token, a=1, b=2))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32005, "AuthorizationError")
        assert error["data"]["permission"] == "ToolInvoke(add)"
        clock.now += 60
        assert (await call(peer, token, a=1, b=2))["error"]["code"] == -32004


@pytest.mark.req("GGEN-AUTH-3")
async def test_a_token_without_the_scopes_that_all_must_hold_gets_32005(memory: ApiKeys) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    async with raw(served(memory, scopes=["use"]), LATEST) as peer:
        assert (await call(peer, token, a=1, b=2))["error"]["code"] == -32005


@pytest.mark.req("GGEN-AUTH-4")
@pytest.mark.parametrize(("option", "wait"), [("per_minute", 20), ("per_hour", 1200)])
async def test_a_key_is_held_to_its_minute_and_its_hour(memory: ApiKeys, option: str, wait: int) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(*)"], **{option: 3})  # pyright: ignore[reportArgumentType]
    other, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    async with raw(served(memory), LATEST) as peer:
        for name, given in [*CALLS.items(), ("drop", {})]:
            assert not _failed(await call(peer, token, name, **given))
        error = (await call(peer, token, "drop"))["error"]
        assert error["data"]["limit"] == option and error["data"]["retryable"] is True
        assert wait - 2 <= error["data"]["retry_after"] <= wait + 1
        assert (error["data"]["retry_after"] - 1) * 1000 <= error["data"]["retry_after_ms"] <= wait * 1000 + 1
        assert not _failed(await call(peer, other, "drop"))


async def test_what_the_hour_refuses_does_not_use_up_the_minute() -> None:
    from defserve.auth.rates import Rate
    from defserve.errors import LimitExceeded
    from defserve.protocols.mcp.authorization import Authorization

    authorization = Authorization(Rate())
    rates = ApiKeyPrincipal("alice", key="k", per_minute=100, per_hour=1).rates
    count: Any = authorization._count_key  # pyright: ignore[reportPrivateUsage]
    count(rates)
    for _ in range(200):
        with pytest.raises(LimitExceeded) as caught:
            count(rates)
        assert caught.value.data["limit"] == "per_hour"
    count({key: rate for key, rate in rates.items() if key[1] == "per_minute"})


# -- in the message itself -------------------------------------------------------------------------------


@pytest.mark.req("GGEN-AUTH-5")
@pytest.mark.parametrize("version", [*HANDSHAKE, STATELESS])
async def test_a_token_in_the_message_says_whose_it_is(memory: ApiKeys, version: str) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(drop)"])
    async with raw(served(memory), version) as peer:
        reply = await call(peer, token, "drop")
        assert reply["result"]["content"][0]["text"] == "dropped by alice"
        # Once is not enough: each request shows it, whatever the method.
        assert _failed(await call(peer, None, "drop"))
        assert "error" in await ask(peer, None, "tools/list")
        assert "error" in await ask(peer, None, "resources/read", uri="x://y")
        assert "result" in await ask(peer, token, "resources/read", uri="x://y")


@pytest.mark.parametrize(
    "auth",
    ["token", {"type": "basic", "token": "T"}, {"token": "T"}, {"type": "bearer"}, {"type": "bearer", "token": 1}],
)
async def test_any_other_form_of_it_is_no_token(memory: ApiKeys, auth: Any) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    if isinstance(auth, dict) and auth.get("token") == "T":
        auth = {**auth, "token": token}
    async with raw(served(memory), LATEST) as peer:
        await peer.send({"jsonrpc": "2.0", "id": 9, "method": "tools/list", "params": {}, "auth": auth})
        assert (await peer.reply_to(9))["error"]["code"] == -32004


async def test_a_conversation_is_of_one_principal(memory: ApiKeys) -> None:
    (alice, _), (bob, _) = [await memory.create(name, permissions=["ToolInvoke(*)"]) for name in ("alice", "bob")]
    async with raw(served(memory), LATEST) as peer:
        assert not _failed(await call(peer, alice, "drop"))
        assert (await call(peer, bob, "drop"))["error"]["code"] == -32005


async def test_each_message_has_the_rights_of_its_own_token(memory: ApiKeys) -> None:
    weak, _ = await memory.create("alice", permissions=["ToolsListAll"])
    strong, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    async with raw(served(memory), LATEST) as peer:
        for token, failed in ((weak, True), (strong, False), (weak, True), (strong, False)):
            assert _failed(await call(peer, token, "drop")) is failed


async def test_sessions_are_counted_by_who_they_belong_to(memory: ApiKeys) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    server = served(memory)
    async with raw(server, LATEST) as peer:
        await call(peer, token, "drop")
        (session,) = server.composition.sessions
        assert (session.principal, session.is_local) == ("alice", True)
    assert server.composition.sessions == set()


@pytest.mark.req("GGEN-AUTH-5")
async def test_the_token_is_gone_before_anybody_can_log_it(memory: ApiKeys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token, _ = await memory.create("alice", permissions=["ToolInvoke(*)"])
    server, seen = served(memory), list[Json]()

    @server.around("tools/call")
    async def look(call: Any, params: Json, next: Any) -> Any:
        seen.append(dict(call.raw))
        return await next(call, params)

    @server.tool
    def crash() -> str:
        raise RuntimeError("boom")

    async with raw(server, LATEST) as peer:
        assert "error" in await call(peer, token, "crash")
    assert seen and "auth" not in seen[0]
    assert token not in caplog.text and token.partition(".")[2] not in caplog.text


async def test_without_being_asked_for_it_local_callers_need_no_token(memory: ApiKeys) -> None:
    server = Server("open", "1", auth=memory)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    async with raw(server, LATEST) as peer:
        assert not _failed(await call(peer, None, a=1, b=2))


# -- in the header ---------------------------------------------------------------------------------------


async def test_over_http_the_key_is_a_bearer_token(memory: ApiKeys) -> None:
    token, _ = await memory.create("alice", permissions=["ToolInvoke(drop)"])
    async with client(served(memory)) as http:
        assert (await post(http, None, "tools/list")).status_code == 401
        assert (await post(http, token[:-1] + "~", "tools/list")).status_code == 401
        reply = (await post(http, token, "tools/list")).json()
        assert [tool["name"] for tool in reply["result"]["tools"]] == ["drop"]
        reply = (await post(http, token, "tools/call", name="drop", arguments={})).json()
        assert reply["result"]["content"][0]["text"] == "dropped by alice"


@pytest.mark.slow
async def test_a_running_call_ends_with_the_key_in_its_message() -> None:
    keys = ApiKeys(MemoryStore(), pepper=PEPPER)
    made = await keys.create("ann", permissions=["ToolInvoke(*)"])
    server, waiting = served(keys), asyncio.Event()

    @server.tool
    async def wait() -> str:
        waiting.set()
        await asyncio.Event().wait()
        return "unreachable"

    async with raw(server) as peer:
        running = asyncio.create_task(call(peer, made.token, "wait"))
        await waiting.wait()
        await keys.revoke(made.key.id)
        assert "revoked or has expired" in str(await running)


@for_each_row("address", ["redis://h", "rediss://h", "redis+unix:///h", "redis+sentinel://h:26379/main/0"])
def test_keys_are_kept_in_any_redis(address: str) -> None:
    assert type(ApiKeys(address, pepper=PEPPER)._store.raw).__name__ == "RedisStore"
