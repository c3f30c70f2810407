"""What earlier versions kept is read, written on and upgraded in place; what a later version kept is refused.

0.1.0 named no server. What lasts is refused until somebody has said whose it is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from defserve.auth.api_keys import ApiKeys
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.signed_tokens import DeniedTokens
from defserve.cli.commands.state import adopt_store
from defserve.errors import UsageError
from defserve.stores.audit import log_file as audit
from defserve.stores.audit.chain import AuditHead, AuditKeys, make_head_path
from defserve.stores.audit.log_file import AuditLog, verify_audit_log
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.checkpoints.checkpoint_store import (
    CheckpointStore,
    StateTampered,
    find_old_secret,
    load_checkpoint_secret,
)
from defserve.stores.checkpoints.checkpoint_tree import (
    RANDOM,
    CheckpointRecord,
    CheckpointTree,
    TreeKey,
    encode_canonical,
    make_checkpoint_id,
    verify_checkpoint_id,
)
from defserve.stores.files import read_secret
from defserve.stores.identity import ServerIdentity, make_server_store, open_store
from defserve.stores.sqlite import MIGRATIONS
from defserve.stores.store import API_KEYS_SPACE, FORMAT_SPACE, Lease, SharedNonceStore, Store, StoreUnavailable
from tests.stores.kept_formats import AUDIT_KEY, LARGE, NOTES, PEPPER, SMALL
from tests.stores.kept_formats import SERVER_SECRET as SECRET
from tests.stores.redis_server import RedisServer

pytestmark = pytest.mark.anyio

KEPT = Path(__file__).parent / "formats" / "0.1.0"
TOLD: dict[str, Any] = json.loads((KEPT / "told.json").read_text())
STEPS, OTHER = TreeKey("notes.edit", "alice"), ServerIdentity("name", "payroll")
NEW = TreeKey("notes.new", "alice")
SEALED = KEPT.with_name("0.1.0-secret")
LATER = "has format 99; this version of defserve reads up to format {}: upgrade defserve"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with what 0.1.0 kept, as private as it was."""
    for file in KEPT.iterdir():
        shutil.copy(file, tmp_path)
        (tmp_path / file.name).chmod(0o600)
    return tmp_path


async def put_in_redis(redis: RedisServer, prefix: str, dump: str) -> str:
    """The address of what 0.1.0 kept in Redis."""
    client = Redis(unix_socket_path=str(redis.socket))
    for key, about in json.loads(dump).items():
        name = prefix + key.removeprefix("defserve:")
        fields = {field: base64.b64decode(value) for field, value in about["fields"].items()}
        await client.hset(name, mapping=fields)
        if about["ttl"] > 0:
            await client.pexpire(name, about["ttl"])
    await client.aclose()
    return f"{redis.address}?prefix={prefix}"


@pytest.fixture
async def redis_kept(redis: RedisServer, kept: Path) -> str:
    return await put_in_redis(redis, f"{kept.name}:", (kept / "redis.json").read_text())


@pytest.fixture(params=["sqlite", "redis"])
async def old(request: pytest.FixtureRequest, kept: Path, redis_kept: str) -> AsyncIterator[tuple[Store, Any]]:
    """A server's part of a store of 0.1.0, which was given to it, and what its callers were told."""
    address = {"sqlite": f"sqlite:///{kept / 'store.db'}", "redis": redis_kept}[request.param]
    await adopt_store(address, NOTES)
    store = make_server_store(address, NOTES)
    yield store, TOLD[request.param]
    await store.close()


# -- whose it is -----------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis"])
async def unnamed(request: pytest.FixtureRequest, redis: RedisServer, tmp_path: Path) -> tuple[str, Any]:
    """The address of a store of 0.1.0 of a server with a secret, and what its callers were told."""
    for file in SEALED.iterdir():
        shutil.copy(file, tmp_path)
        (tmp_path / file.name).chmod(0o600)
    in_redis = await put_in_redis(redis, f"{tmp_path.name}-sealed:", (tmp_path / "redis.json").read_text())
    address = {"sqlite": f"sqlite:///{tmp_path / 'store.db'}", "redis": in_redis}[request.param]
    return address, json.loads((tmp_path / "told.json").read_text())[request.param]


async def test_a_server_refuses_a_store_of_0_1_0_and_says_what_to_do(unnamed: tuple[str, Any]):
    store = make_server_store(unnamed[0], NOTES)
    for use in (store.open(), store.get(API_KEYS_SPACE, ["a"]), SharedNonceStore(store).spend("x", ttl=1)):
        with pytest.raises(StoreUnavailable, match="which server they belong to.*defserve state adopt"):
            await use
    await store.close()


async def test_what_0_1_0_kept_is_the_server_s_to_whom_it_is_given_and_nobody_else_s(unnamed: tuple[str, Any]):
    address, told = unnamed
    assert await adopt_store(address, NOTES, SECRET) == 4
    for identity, is_known in ((NOTES, True), (OTHER, False)):
        store = make_server_store(address, identity)
        trees = await trees_of(store, SECRET, identity)
        assert ((await trees.load_checkpoint(STEPS)).content() == {"step": 2}) is is_known
        # An id that a host has from 0.1.0 is known; it proves nothing until an operator trusts what 0.1.0 kept.
        if is_known:
            assert not (await trees.adopt_content(STEPS, {"step": 1}, checkpoint=told["ids"][1])).verified
            assert await trees.verify(STEPS) == []
        else:
            with pytest.raises(StateTampered):
                await trees.adopt_content(STEPS, {"step": 1}, checkpoint=told["ids"][1])
        assert (await ApiKeys(store, pepper=PEPPER).verify(told["token"]) is not None) is is_known
        assert await DeniedTokens(store).accepts({"jti": "a denied token"}) is not is_known
        assert await SharedNonceStore(store).spend("a spent nonce", ttl=60) is not is_known
        await store.close()
    with pytest.raises(UsageError, match=r"has nothing of defserve 0\.1\.0"):
        await adopt_store(address, OTHER)


async def test_a_store_of_0_1_0_in_which_all_ends_by_itself_is_taken_as_it_is(tmp_path: Path, redis: RedisServer):
    path = tmp_path / "store.db"
    shutil.copy(SEALED / "store.db", path)
    path.chmod(0o600)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE expires IS NULL AND space NOT LIKE 'audit%'")
    connection.close()
    client = Redis(unix_socket_path=str(redis.socket))
    await client.hset("ending:format", "version", 1)
    await client.hset("ending:nonce:a spent nonce", "spent", "x")
    await client.aclose()
    for address in (f"sqlite:///{path}", f"{redis.address}?prefix=ending:"):
        store = make_server_store(address, NOTES)
        assert await SharedNonceStore(store).spend(
            "a spent nonce", ttl=60
        )  # 0.1.0's own says nothing about this server
        await store.close()


async def test_the_audit_log_of_0_1_0_is_continued_by_its_name_or_not_at_all(unnamed: tuple[str, Any]):
    await adopt_store(unnamed[0], NOTES)
    with pytest.raises(UsageError, match="what 0.1.0 called the log of every server") as refused:
        await asyncio.to_thread(StoredAuditLog, unnamed[0], server_log=NOTES.label, key=AUDIT_KEY)
    assert "#audit" in str(refused.value)
    log = await asyncio.to_thread(StoredAuditLog, f"{unnamed[0]}#audit", server_log=NOTES.label, key=AUDIT_KEY)
    assert log.last_seq == 3 and log.verify().ok
    log.close()


async def test_a_file_of_keys_of_0_1_0_is_the_first_server_s_that_uses_it(kept: Path):
    path = kept / "keys.json"
    for identity, is_known in ((NOTES, True), (NOTES, True), (OTHER, False)):
        keys = ApiKeys(path, pepper=PEPPER)
        keys.bind_server(identity)
        if is_known:
            keys.check_settings()
            assert await keys.verify(TOLD["keys"]) is not None
        else:
            with pytest.raises(UsageError, match="has the keys of the server name=notes, and this is name=payroll"):
                keys.check_settings()
            with pytest.raises(IssuerUnavailable):
                await keys.verify(TOLD["keys"])
            with pytest.raises(StoreUnavailable):
                await keys.create("eve")
    assert json.loads(path.read_text())["format"] == {"version": 2, "server": "name=notes"}


# -- what it is ------------------------------------------------------------------------------------------


async def trees_of(store: Store, secret: bytes | None = None, identity: ServerIdentity = NOTES) -> CheckpointStore:
    """The trees as a server with this secret opens them."""
    made_with = await load_checkpoint_secret(store, secret, identity)
    return CheckpointStore(store, secret=made_with, old_secret=await find_old_secret(store))


@pytest.fixture(params=["a secret of the server", "a secret in the store"])
async def copies(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[list[Store], bytes | None]]:
    """Two copies of what 0.1.0 kept in a file, one given to each of two servers, and the secret that both have."""
    folder, secret = {"a secret of the server": (SEALED, SECRET), "a secret in the store": (KEPT, None)}[request.param]
    stores: list[Store] = []
    for identity in (NOTES, OTHER):
        path = tmp_path / f"{identity.value}.db"
        shutil.copy(folder / "store.db", path)
        path.chmod(0o600)
        await adopt_store(f"sqlite:///{path}", identity, secret)
        stores.append(make_server_store(f"sqlite:///{path}", identity))
    yield stores, secret
    for store in stores:
        await store.close()


async def test_servers_to_whom_copies_of_one_store_were_given_do_not_know_each_other_s_new_ids(
    copies: tuple[list[Store], bytes | None],
):
    (one, other), secret = copies
    ours, theirs = await trees_of(one, secret), await trees_of(other, secret, OTHER)
    made = (await ours.commit(await ours.load_checkpoint(NEW), {"text": "mine"})).checkpoint
    assert made.proved and (await ours.adopt_content(NEW, {"text": "mine"}, checkpoint=made.id)).verified
    with pytest.raises(StateTampered):
        await theirs.adopt_content(NEW, {"text": "mine"}, checkpoint=made.id)


async def test_what_0_1_0_made_ids_with_proves_nothing_and_makes_nothing(copies: tuple[list[Store], bytes | None]):
    (one, _), secret = copies
    trees, old = await trees_of(one, secret), await find_old_secret(one)
    assert old is not None
    for is_proved in (False, True):
        id = make_checkpoint_id(
            old, NEW.owner, NEW.feature_set, encode_canonical({"forged": 1}), b"r" * RANDOM, is_proved=is_proved
        )
        if is_proved:
            with pytest.raises(StateTampered):
                await trees.adopt_content(NEW, {"forged": 1}, checkpoint=id)
        else:
            assert not (await trees.adopt_content(NEW, {"forged": 1}, checkpoint=id)).verified
    made = (await trees.commit(await trees.load_checkpoint(NEW), {"a": 1})).checkpoint
    assert not verify_checkpoint_id(
        old, made.id, NEW.owner, NEW.feature_set, encode_canonical({"a": 1}), is_proved=True
    )


async def test_another_secret_of_the_server_ends_the_ids_that_were_made_with_the_first(unnamed: tuple[str, Any]):
    address, told = unnamed
    await adopt_store(address, NOTES, SECRET)
    store = make_server_store(address, NOTES)
    before = await trees_of(store, SECRET)
    id = (await before.commit(await before.load_checkpoint(NEW), {"a": 1})).checkpoint.id
    after = await trees_of(store, b"another secret, because the first became known")
    with pytest.raises(StateTampered):
        await after.adopt_content(NEW, {"a": 1}, checkpoint=id)
    assert not (await after.adopt_content(STEPS, {"step": 1}, checkpoint=told["ids"][1])).verified
    await store.close()


async def test_checkpoints_are_read_at_every_depth(old: tuple[Store, Any]):
    store, told = old
    trees = await trees_of(store)
    assert await trees.list_trees() == sorted([SMALL, LARGE])
    contents = [await trees.load_content(SMALL, id) for id in told["small"]]
    steps: list[Any] = [{"step": step, "on": True} for step in range(5)]
    assert contents == [*steps, {"step": "after the rollback"}, None]
    for step, id in enumerate(told["large"]):
        notes = (await trees.load_content(LARGE, id))["notes"]
        assert notes[: step + 2] == [*(f"changed {n}" for n in range(step + 1)), f"note {step + 1} " + "x" * 80]
    assert [at.id for at in await trees.list_ancestors(SMALL)] == [told["small"][place] for place in (6, 5, 2, 1, 0)]
    assert await trees.verify(SMALL) == await trees.verify(LARGE) == await store.check() == []


async def test_checkpoints_are_written_on(old: tuple[Store, Any]):
    store, told = old
    trees = await trees_of(store)
    held = await trees.load_checkpoint(LARGE)
    content = held.content()
    content["notes"][0] = "written on"
    made = await trees.commit(held, content)
    assert (made.checkpoint.parent, made.checkpoint.depth) == (told["large"][-1], 20)
    await trees.rollback(SMALL, told["small"][4])
    assert (await trees.commit(await trees.load_checkpoint(SMALL), {"step": 5})).checkpoint.depth == 5
    again = await trees_of(store)
    assert await again.load_content(LARGE, made.checkpoint.id) == content
    assert await again.verify(SMALL) == await again.verify(LARGE) == []


async def test_what_is_written_has_the_very_bytes_of_0_1_0(old: tuple[Store, Any]):
    """A changed form needs a new format, and a step that upgrades what is older."""
    store, _ = old
    for key in (SMALL, LARGE):
        async for name, data in store.scan(key.space):
            read = CheckpointTree.decode(data) if name == "tree" else CheckpointRecord.decode(name, data)
            assert read.encode() == data


async def test_what_0_1_0_kept_is_not_proved_and_neither_is_what_follows(old: tuple[Store, Any]):
    """It signed what callers brought like its own, so its ids prove nothing."""
    store, told = old
    trees = await trees_of(store)
    for key, ids in ((SMALL, told["small"]), (LARGE, told["large"])):
        assert not any(at.proved for at in await trees.list_checkpoints(key))
        for id in ids:
            held = await trees.load_checkpoint(key, id)
            content = held.content()
            assert not held.verified
            if content is not None:
                assert not (await trees.adopt_content(key, content, checkpoint=id)).verified
                assert await trees.find_proved_checkpoint(key, held.before.encoded if held.before else b"") is None
    made = await trees.commit(await trees.load_checkpoint(LARGE), {"notes": []})
    assert not made.checkpoint.proved
    assert not (await trees.adopt_content(LARGE, {"notes": []}, checkpoint=made.checkpoint.id)).verified


async def test_keys_nonces_and_leases_hold(old: tuple[Store, Any]):
    store, told = old
    keys = ApiKeys(store, pepper=PEPPER)
    holder = await keys.verify(told["token"])
    assert holder is not None and holder.id == "alice" and holder.may_invoke("add") and not holder.may_invoke("drop")
    assert [key.principal for key in await keys.keys()] == ["alice"]
    second = await keys.create("carol")
    assert await keys.revoke(second.key.id) and await keys.verify(told["token"]) is not None
    assert not await SharedNonceStore(store).spend("a spent nonce", ttl=60)
    assert await SharedNonceStore(store).spend("another", ttl=60)
    lease = Lease(store, "held by nobody")
    await lease.acquire(5)
    await lease.release()


async def test_the_secret_of_checkpoints_is_no_api_key(old: tuple[Store, Any]):
    store, _ = old
    assert not await ApiKeys(store, pepper=PEPPER).revoke("checkpoints")
    assert await (await trees_of(store)).verify(SMALL) == []


async def test_a_redis_is_marked_when_it_is_opened_and_a_later_one_refused(redis: RedisServer, redis_kept: str):
    await adopt_store(redis_kept, NOTES)
    store = open_store(redis_kept)
    await store.open()
    assert await store.get(FORMAT_SPACE, ["version"]) == {"version": b"2"}
    await store.close()
    client = Redis(unix_socket_path=str(redis.socket))
    await client.hset(f"{redis_kept.partition('prefix=')[2]}format", "version", "99")
    later = open_store(redis_kept)
    for use in (later.open(), later.get("s", ["a"]), later.check(), asyncio.wait_for(anext(aiter(later.scan("s"))), 9)):
        with pytest.raises(StoreUnavailable, match=LATER.format(2)):
            await use
    await client.hset(f"{redis_kept.partition('prefix=')[2]}format", "version", "2")
    await later.open()  # once it is gone, all is well
    await later.close()
    await client.aclose()


async def test_a_later_sqlite_file_is_refused_and_left_as_it_is(tmp_path: Path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            f"PRAGMA application_id = {0x64656673}; CREATE TABLE later (a); PRAGMA user_version = 99"
        )
    connection.close()
    before = path.read_bytes()
    store = open_store(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match=LATER.format(len(MIGRATIONS))):
        await store.open()
    await store.close()
    assert path.read_bytes() == before


async def test_a_file_of_keys_is_read_written_on_and_marked(kept: Path):
    path = kept / "keys.json"
    keys = ApiKeys(path, pepper=PEPPER)
    holder = await keys.verify(TOLD["keys"])
    assert holder is not None and holder.id == "bob"
    await keys.create("carol")
    assert [key.principal for key in await keys.keys()] == ["bob", "carol"]
    assert json.loads(path.read_text())["format"] == {"version": 2}
    assert await ApiKeys(path, pepper=PEPPER).verify(TOLD["keys"]) is not None


@pytest.mark.parametrize("version", [99, "99", None])
async def test_a_later_file_of_keys_is_refused(kept: Path, version: object, caplog: pytest.LogCaptureFixture):
    path = kept / "keys.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": {"version": version}}))
    before, keys = path.read_bytes(), ApiKeys(path, pepper=PEPPER)
    with pytest.raises(StoreUnavailable, match=LATER.format(2).replace("99", str(version))):
        await keys.create("carol")
    with caplog.at_level(logging.ERROR), pytest.raises(IssuerUnavailable):
        await keys.verify(TOLD["keys"])
    assert "upgrade defserve" in caplog.text
    assert path.read_bytes() == before


def test_an_audit_log_is_verified_written_on_and_its_head_marked(kept: Path):
    path = kept / "audit.log"
    assert verify_audit_log(path, AUDIT_KEY) == (True, 5, None, "", False, 0, 0)
    with AuditLog(path, key=AUDIT_KEY) as log:
        assert json.loads(make_head_path(path).read_text())["format"] == 1
        log.append({"type": "written on"})
    assert verify_audit_log(path, AUDIT_KEY) == (True, 6, None, "", False, 0, 0)


def test_an_audit_log_of_a_later_version_is_refused_and_left_as_it_is(kept: Path):
    path = kept / "audit.log"
    make_head_path(path).write_bytes(AuditKeys(AUDIT_KEY).sign_head(AuditHead(5, "0" * 64, "later", 99)))
    before = path.read_bytes(), make_head_path(path).read_bytes()
    report = verify_audit_log(path, AUDIT_KEY)
    assert not report.ok and report.reason == f"it {LATER.format(1)}"
    with pytest.raises(UsageError, match=LATER.format(1)):
        audit.AuditLog(path, key=AUDIT_KEY)
    assert (path.read_bytes(), make_head_path(path).read_bytes()) == before


def test_a_secret_is_read_and_one_of_a_later_version_refused(kept: Path):
    path = kept / "secret"
    assert read_secret(path, "the secret") == TOLD["secret"].encode()
    path.write_text("defserve-secret-format:99 x\nabc\n")
    with pytest.raises(UsageError, match=LATER.format(1)):
        read_secret(path, "the secret")
