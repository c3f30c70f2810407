"""Writes what this version keeps, in the forms that `formats/VERSION` holds: run once for each released version.

python -m tests.stores.kept_formats tests/stores/formats/0.2.0
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from defserve.auth.api_keys import ApiKeys
from defserve.auth.signed_tokens import DeniedTokens
from defserve.kernel.kernel_state import KernelState, StateFile
from defserve.protocols.mcp.tasks.records import TaskRecord, TaskStorage, new_task_id
from defserve.stores.audit.log_file import AuditLog
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore, load_checkpoint_secret
from defserve.stores.checkpoints.checkpoint_tree import TreeKey
from defserve.stores.files import make_secret
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import Lease, SharedNonceStore, Store
from tests.stores.redis_server import RedisServer

PEPPER = "a pepper of these files alone"
AUDIT_KEY = "an audit key of these files alone"
SERVER_SECRET = b"a secret of these files alone, of 32 bytes"
FOR_EVER = 1e10
SMALL, LARGE = TreeKey("notes.edit", "alice"), TreeKey("notes.draw", "bob é")
NOTES = ServerIdentity("name", "notes")


async def write_checkpoints(store: Store) -> dict[str, list[str]]:
    """A small tree with a branch and a checkpoint without content, and one of 20 patches."""
    trees = CheckpointStore(store, secret=await load_checkpoint_secret(store, SERVER_SECRET, NOTES))

    async def commit(key: TreeKey, *content: Any) -> str:
        return (await trees.commit(await trees.load_checkpoint(key), *content)).checkpoint.id

    small = [await commit(SMALL, {"step": step, "on": True}) for step in range(5)]
    await trees.rollback(SMALL, small[2])
    small += [await commit(SMALL, {"step": "after the rollback"}), await commit(SMALL)]
    notes = [f"note {n} " + "x" * 80 for n in range(60)]
    large: list[str] = []
    for step in range(20):
        notes[step] = f"changed {step}"
        large.append(await commit(LARGE, {"notes": notes}))
    return {"small": small, "large": large}


async def write_tasks(store: Store) -> dict[str, str]:
    """A task that is over, and one that waits for an answer."""
    storage = TaskStorage(store)
    now, ttl = storage.now(), int(FOR_EVER * 1000)
    over, waiting = (TaskRecord(new_task_id(), "add", now, now, ttl, 100, "alice", None, "r", 0) for _ in range(2))
    waiting.arguments, waiting.effects, waiting.marks = {"a": 1}, {"paid": True}, {"mark": "é"}
    for record in (over, waiting):
        await storage.create(record)

    def finish(record: TaskRecord) -> bytes:
        record.finish("completed", "all is added")
        return b'{"result":{"content":[{"type":"text","text":"3"}]}}'

    def ask(record: TaskRecord) -> bool:
        record.status = "input_required"
        record.questions = {"q1": {"method": "elicitation/create", "params": {"message": "Sure?"}, "digest": "d"}}
        return True

    await storage.change(over.id, finish)
    await storage.change(waiting.id, ask)
    return {"over": over.id, "waiting": waiting.id}


async def write_store(address: str) -> dict[str, Any]:
    """All that a server keeps in a store for longer than a process lives. Returns what its callers were told."""
    store = make_server_store(address, NOTES)
    told: dict[str, Any] = {**await write_checkpoints(store), "tasks": await write_tasks(store)}
    await SharedNonceStore(store).spend("a spent nonce", ttl=FOR_EVER)
    await DeniedTokens(store).deny("a denied token", until=FOR_EVER)
    keys = ApiKeys(store, pepper=PEPPER)
    made = await keys.create("alice", permissions=["ToolInvoke(add)"], scopes=["files:read"], per_minute=60)
    await keys.verify(made.token)
    lease = Lease(store, "held by nobody")
    await lease.acquire(1)
    await lease.release()
    await store.close()
    log = await asyncio.to_thread(StoredAuditLog, address, server_log=NOTES.label, key=AUDIT_KEY)
    for number in range(3):
        await asyncio.to_thread(log.append, {"type": "tool_called", "number": number, "who": "é"}, durable=True)
    await asyncio.to_thread(log.close)
    return {**told, "token": made.token}


async def write_files(folder: Path) -> dict[str, str]:
    """A file of keys, a secret, an audit log, and what a kernel knows."""
    keys = ApiKeys(folder / "keys.json", pepper=PEPPER)
    keys.bind_server(NOTES)
    token = (await keys.create("bob", permissions=["ToolsListAll"], expires_in=FOR_EVER)).token
    secret = make_secret(folder / "secret", "the secret").decode()
    with AuditLog(folder / "audit.log", key=AUDIT_KEY) as log:
        for number in range(5):
            log.append({"type": "tool_called", "number": number, "who": "é"}, durable=number % 2 == 0)

    def approve(state: KernelState) -> None:
        state.pins["notes"] = {"add": "0" * 64}
        state.definitions["notes"] = {"add": {"name": "add", "inputSchema": {"type": "object"}}}
        state.access["notes"] = [{"agent_id": "alice", "tool_name": "add", "permission": "allow"}]
        state.permissions["notes"] = {"FileRead": {"decision": "approved"}}

    StateFile(folder / "mgp.toml").update(approve)
    return {"keys": token, "secret": secret}


async def dump_redis(socket: Path) -> dict[str, Any]:
    """Each key with its milliseconds to live (-1: for ever) and its fields in base64."""
    client = Redis(unix_socket_path=str(socket))
    dump: dict[str, Any] = {}
    for key in sorted(await client.keys("*")):
        fields = {
            name.decode(): base64.b64encode(value).decode() for name, value in (await client.hgetall(key)).items()
        }
        dump[key.decode()] = {"ttl": await client.pttl(key), "fields": fields}
    await client.aclose()
    return dump


def write_all(folder: Path) -> None:
    folder.mkdir(parents=True)
    told: dict[str, Any] = {"sqlite": asyncio.run(write_store(f"sqlite:///{folder / 'store.db'}"))}
    server = RedisServer().start()
    try:
        told["redis"] = asyncio.run(write_store(server.address))
        (folder / "redis.json").write_text(json.dumps(asyncio.run(dump_redis(server.socket)), indent=1) + "\n")
    finally:
        server.remove()
    told |= asyncio.run(write_files(folder))
    (folder / "told.json").write_text(json.dumps(told, indent=1) + "\n")
    with sqlite3.connect(folder / "store.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    for lock in folder.glob("*.lock"):
        lock.unlink()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
