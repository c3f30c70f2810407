"""What 0.2.0 and every later version kept is read by this one, as the same server's, and written on.

0.1.0 named no server: `test_formats.py` has what it kept.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from defserve.auth.api_keys import ApiKeys
from defserve.auth.signed_tokens import DeniedTokens
from defserve.base.version import VERSION
from defserve.errors import UsageError
from defserve.kernel.kernel_state import StateFile
from defserve.protocols.mcp.tasks.records import TaskRecord, TaskStorage
from defserve.stores.audit.log_file import AuditLog, verify_audit_log
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore, StateTampered, load_checkpoint_secret
from defserve.stores.checkpoints.checkpoint_tree import CheckpointRecord, CheckpointTree, TreeKey
from defserve.stores.files import read_secret
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import TASK_SPACES, SharedNonceStore, Store
from tests.stores.kept_formats import AUDIT_KEY, LARGE, NOTES, PEPPER, SERVER_SECRET, SMALL
from tests.stores.redis_server import RedisServer
from tests.stores.test_formats import put_in_redis

pytestmark = pytest.mark.anyio

FORMATS = Path(__file__).parent / "formats"
VERSIONS = sorted(folder.name for folder in FORMATS.iterdir() if folder.is_dir() and not folder.name.startswith("0.1."))
OTHER = ServerIdentity("name", "payroll")


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with what a version kept, as private as it was."""
    for file in (FORMATS / request.param).iterdir():
        shutil.copy(file, tmp_path)
        (tmp_path / file.name).chmod(0o600)
    return tmp_path


@pytest.fixture(params=["sqlite", "redis"])
async def address(request: pytest.FixtureRequest, kept: Path, redis: RedisServer) -> tuple[str, Any]:
    """Where a store of that version is now, and what its callers were told."""
    told = json.loads((kept / "told.json").read_text())[request.param]
    if request.param == "sqlite":
        return f"sqlite:///{kept / 'store.db'}", told
    return await put_in_redis(redis, f"{kept.name}-{kept.parent.name}:", (kept / "redis.json").read_text()), told


@pytest.fixture
async def server_store(address: tuple[str, Any]) -> AsyncIterator[tuple[Store, Any]]:
    store = make_server_store(address[0], NOTES)
    yield store, address[1]
    await store.close()


async def open_trees(store: Store, identity: ServerIdentity = NOTES) -> CheckpointStore:
    return CheckpointStore(store, secret=await load_checkpoint_secret(store, SERVER_SECRET, identity))


def test_what_this_version_keeps_is_among_the_files():
    assert VERSION in VERSIONS, f"run: python -m tests.stores.kept_formats tests/stores/formats/{VERSION}"


async def test_checkpoints_are_read_are_proved_and_are_written_on(server_store: tuple[Store, Any]):
    store, told = server_store
    trees = await open_trees(store)
    steps: list[Any] = [{"step": step, "on": True} for step in range(5)]
    contents = [await trees.load_content(SMALL, id) for id in told["small"]]
    assert contents == [*steps, {"step": "after the rollback"}, None]
    for step, id in enumerate(told["large"]):
        content = await trees.load_content(LARGE, id)
        assert content["notes"][: step + 1] == [f"changed {n}" for n in range(step + 1)]
        assert (await trees.adopt_content(LARGE, content, checkpoint=id)).verified
    await trees.rollback(SMALL, told["small"][1])
    made = (await trees.commit(await trees.load_checkpoint(SMALL), {"step": "later"})).checkpoint
    assert made.proved and made.parent == told["small"][1]
    assert await trees.verify(SMALL) == await trees.verify(LARGE) == await store.check() == []


async def test_what_is_written_now_has_the_same_bytes(server_store: tuple[Store, Any]):
    """A changed form needs a new format, and a step that upgrades what is older."""
    store, told = server_store
    for key in (SMALL, LARGE):
        async for name, data in store.scan(key.space):
            if not name.startswith("dig_"):
                read = CheckpointTree.decode(data) if name == "tree" else CheckpointRecord.decode(name, data)
                assert read.encode() == data
    for id in told["tasks"].values():
        data = (await store.get(TASK_SPACES.make_space(id), ["record"]))["record"]
        assert TaskRecord.from_bytes(data).to_bytes() == data


async def test_tasks_are_found_and_go_on(server_store: tuple[Store, Any]):
    store, told = server_store
    storage = TaskStorage(store)
    over, waiting = [await storage.find(told["tasks"][name]) for name in ("over", "waiting")]
    assert over is not None and over.to_detailed_task()["result"]["content"][0]["text"] == "3"
    assert waiting is not None and list(waiting.to_detailed_task()["inputRequests"]) == ["q1"]
    record = waiting.record
    assert (record.arguments, record.effects, record.marks) == ({"a": 1}, {"paid": True}, {"mark": "é"})

    def finish(record: TaskRecord) -> bool:
        record.finish("cancelled")
        return True

    ended = await storage.change(record.id, finish)
    assert ended is not None and ended.record.status == "cancelled"


async def test_keys_denied_tokens_and_spent_nonces_hold(server_store: tuple[Store, Any]):
    store, told = server_store
    keys = ApiKeys(store, pepper=PEPPER)
    holder = await keys.verify(told["token"])
    assert holder is not None and holder.id == "alice" and holder.may_invoke("add") and not holder.may_invoke("drop")
    assert not await DeniedTokens(store).accepts({"jti": "a denied token"})
    assert not await SharedNonceStore(store).spend("a spent nonce", ttl=60)


async def test_another_server_knows_nothing_of_it(address: tuple[str, Any]):
    where, told = address
    store = make_server_store(where, OTHER)
    trees = await open_trees(store, OTHER)
    assert await trees.list_trees() == []
    with pytest.raises(StateTampered):
        await trees.adopt_content(TreeKey("notes.edit", "alice"), {"step": 1, "on": True}, checkpoint=told["small"][1])
    assert await ApiKeys(store, pepper=PEPPER).verify(told["token"]) is None
    assert await TaskStorage(store).find(told["tasks"]["over"]) is None
    assert await SharedNonceStore(store).spend("a spent nonce", ttl=60)
    await store.close()


async def test_the_stored_audit_log_is_continued(address: tuple[str, Any]):
    log = await asyncio.to_thread(StoredAuditLog, address[0], server_log=NOTES.label, key=AUDIT_KEY)
    assert log.last_seq == 3 and log.verify().ok
    log.append({"type": "written on"}, durable=True)
    assert log.last_seq == 4 and log.verify().ok
    log.close()


def test_the_audit_log_in_a_file_is_continued(kept: Path):
    with AuditLog(kept / "audit.log", key=AUDIT_KEY) as log:
        log.append({"type": "written on"})
    report = verify_audit_log(kept / "audit.log", AUDIT_KEY)
    assert report.ok and report.events == 6


async def test_a_file_of_keys_stays_the_server_s(kept: Path):
    told = json.loads((kept / "told.json").read_text())
    keys = ApiKeys(kept / "keys.json", pepper=PEPPER)
    keys.bind_server(NOTES)
    holder = await keys.verify(told["keys"])
    assert holder is not None and holder.id == "bob"
    others = ApiKeys(kept / "keys.json", pepper=PEPPER)
    others.bind_server(OTHER)
    with pytest.raises(UsageError, match="has the keys of the server name=notes"):
        others.check_settings()


def test_a_secret_and_what_a_kernel_knows_are_read(kept: Path):
    assert read_secret(kept / "secret", "the secret").decode() == json.loads((kept / "told.json").read_text())["secret"]
    known = StateFile(kept / "mgp.toml").known
    assert known.pins == {"notes": {"add": "0" * 64}}
    assert known.definitions["notes"]["add"]["name"] == "add"
    assert [entry["agent_id"] for entry in known.access["notes"]] == ["alice"]
    assert known.permissions == {"notes": {"FileRead": {"decision": "approved"}}}
