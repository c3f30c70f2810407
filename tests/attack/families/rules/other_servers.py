"""What one server has sealed or stored is nothing to another one, although they share a Redis, a secret and a host.

The kinds of values are those of `tests/server/test_two_servers.py`, each made at one server and shown to another.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from defserve.stores.redis import RedisStore
from defserve.stores.store import Lease, StoreBusy
from tests.attack.arena import Kind
from tests.attack.controls.rules import keep_all_servers_together, know_no_server, seal_for_all_servers
from tests.attack.speaking.mcp import Caller, outcome
from tests.attack.trial import Control, Family, MissingFeature, Trial
from tests.server.test_two_servers import KINDS, Process, processes
from tests.stores.redis_server import RedisServer

FAMILY = Family("other servers")
KNOWS = "the other server knows it"
QUIET = logging.NullHandler()
TAKES: Any = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}

URL = "https://tools.example.com/mcp"
PAIRS: Mapping[str, list[dict[str, Any]]] = {
    "names at one URL": [{"name": "notes", "url": URL}, {"name": "payroll", "url": URL}],
    "namespaces": [{"name": "notes", "url": URL, "namespace": each} for each in ("staging", "production")],
    "names that look like others": [{"name": "a:b", "url": URL}, {"name": "a%3Ab", "url": URL}],
}

GROUPS: Mapping[str, tuple[str, tuple[Control, ...]]] = {
    "sign-ins": (
        "access_token refresh_token authorization_code client_id consent every_purpose_of_a_seal grant",
        (
            Control(seal_for_all_servers, KNOWS, "every_purpose_of_a_seal, names at one URL", here=True),
            Control(keep_all_servers_together, KNOWS, "grant, names at one URL", here=True),
            Control(know_no_server, KNOWS, "access_token, names at one URL", here=True),
        ),
    ),
    "keys and proofs": (
        "api_key api_key_in_a_file revoked_key denied_token dpop_nonce used_dpop_proof",
        (
            Control(keep_all_servers_together, KNOWS, "api_key, names at one URL", here=True),
            Control(seal_for_all_servers, KNOWS, "dpop_nonce, namespaces", here=True),
        ),
    ),
    "questions, tasks and states": (
        "request_state task state checkpoint_id stored_checkpoint_secret",
        (
            Control(seal_for_all_servers, KNOWS, "checkpoint_id, namespaces", here=True),
            Control(keep_all_servers_together, KNOWS, "state, names at one URL", here=True),
        ),
    ),
    "what processes share": (
        "session_id access_entry news living_worker nonce patient_lease rate work_that_is_done_once",
        (Control(keep_all_servers_together, KNOWS, "news, names at one URL", here=True),),
    ),
}


async def patient_lease(one: Process, other: Process) -> bool:
    """A busy machine gets the lease late; one that another server holds, it never gets."""
    mine, others = (Lease(process.plain.store, "a lease") for process in (one, other))
    await mine.acquire(20)
    try:
        await others.acquire(5)
    except StoreBusy:
        return True
    else:
        await others.release()
        return False
    finally:
        await mine.release()


MADE = {**KINDS, patient_lease.__name__: patient_lease}


@contextmanager
def redis() -> Iterator[RedisServer]:
    """A Redis of this attack's own, and no connection to it that outlives the attack's loop."""
    if shutil.which("redis-server") is None:
        raise MissingFeature("there is no redis-server")
    served = RedisServer().start()
    try:
        yield served
    finally:
        served.remove()


async def is_known(served: RedisServer, kind: str, pair: list[dict[str, Any]]) -> bool:
    """Whether the second server knows what the first one has made."""
    opened, init, folder = list[RedisStore](), RedisStore.__init__, Path(mkdtemp(prefix="p", dir=served.folder))

    def note(store: RedisStore, *given: Any, **more: Any) -> None:
        opened.append(store)
        init(store, *given, **more)

    RedisStore.__init__ = note  # type: ignore[method-assign]
    try:
        async with processes(served, folder, *pair) as (one, other):
            return await MADE[kind](one, other)
    finally:
        RedisStore.__init__ = init  # type: ignore[method-assign]
        for store in opened:
            await store.close()


def show(trial: Trial, kinds: list[str]) -> None:
    # What servers say at their start is not for whoever reads the table.
    logging.getLogger("defserve").addHandler(QUIET)
    cases = {f"{kind}, {pair}": (kind, PAIRS[pair]) for kind in kinds for pair in PAIRS}
    with redis() as served:
        for name, (kind, pair) in trial.choose(cases):
            trial.expect(not asyncio.run(is_known(served, kind, pair)), f"{name}: {KNOWS}")


for _name, (_kinds, _controls) in GROUPS.items():
    FAMILY.add(_name, lambda trial, kinds=_kinds: show(trial, kinds.split()), *_controls)


@FAMILY.attack(
    "over HTTP",
    Control(keep_all_servers_together, "the session|the task"),
    Control(seal_for_all_servers, "the request state"),
)
def _(trial: Trial) -> None:
    """Real processes: a session id, a task and a request state of one, sent to the other."""
    with redis() as served:
        house = Kind("house").with_env(HOUSE_REDIS=served.address)
        here, there = (
            Caller(trial.arena.serve(house.with_env(HOUSE_NAME=name)).place) for name in ("notes", "payroll")
        )
        session = here.open()
        trial.expect("hello" in outcome(session.call("echo", text="hello")), "its own server does not know the session")
        taken = there.using(session=session.session).call("echo", text="hello")
        trial.expect("hello" not in outcome(taken), f"the session of one is one of the other: {outcome(taken)}")
        task = here.alone("tools/call", {"name": "wait", "arguments": {}}, capabilities=TAKES)["result"]["taskId"]
        own = here.alone("tasks/get", {"taskId": task}, capabilities=TAKES)
        trial.expect("result" in own, f"its own server does not know the task: {outcome(own)}")
        for method in ("tasks/get", "tasks/cancel", "tasks/result"):
            found = there.alone(method, {"taskId": task}, capabilities=TAKES)
            trial.expect("result" not in found, f"{method}: the task of one is one of the other: {outcome(found)}")
        call = {"name": "greet", "arguments": {}}
        state = here.alone("tools/call", call, capabilities=TAKES)["result"]["requestState"]
        answers = {"name": {"action": "accept", "content": {"value": "Ann"}}}
        answered = {**call, "inputResponses": answers, "requestState": state}
        for told, caller in {"its own server": here, "the other": there}.items():
            got = outcome(caller.alone("tools/call", answered, capabilities=TAKES))
            believed = "an effect at notes" in got
            trial.expect(believed is (caller is here), f"the request state at {told}: {got}")
        for caller in (here, there):
            trial.arena.drop(next(one for one in trial.arena.used if one.place == caller.place))
