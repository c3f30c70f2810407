"""Random calls, failures, cancellations, rollbacks and branches at the wire, against a plain dict."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from defserve import Server
from defserve.stores.checkpoints import checkpoint_tree
from defserve.stores.identity import open_store
from defserve.stores.store import MemoryStore, Store
from tests.effort import examples
from tests.protocols.mcpl.hosts import Host, Json, hosting
from tests.protocols.mcpl.state.state_hosts import Notes, notes_of, refusal, roll_back
from tests.stores.redis_server import RedisServer

KEEP = 8
texts = st.text("abc", min_size=1, max_size=3)


class Stage:
    """A loop on which one task does everything: what is entered there is left there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._work: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while (given := await self._work.get()) is not None:
            work, done = given
            try:
                done.set_result(await work)
            except Exception as error:
                done.set_exception(error)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        done = self._loop.create_future()
        self._work.put_nowait((work, done))
        return self._loop.run_until_complete(done)

    def close(self) -> None:
        self._work.put_nowait(None)
        self._loop.run_until_complete(self._task)
        self._loop.close()


class StateMachine(RuleBasedStateMachine):
    """What the server should keep: the notes at every checkpoint, in the order of their making, and the head."""

    tree = Bundle("checkpoints")

    def new_store(self) -> Store:
        return MemoryStore()

    def __init__(self) -> None:
        super().__init__()
        self.stage, self.stack = Stage(), AsyncExitStack()
        self.store = self.new_store()
        self.notes: dict[str, list[str]] = {}
        self.parents: dict[str, str | None] = {}
        self.data: dict[str, Json] = {}
        self.head: str | None = None

    @initialize()
    def begin(self) -> None:
        async def enter() -> None:
            self.served = Notes(Server("notes", "1", store=self.store), keep=KEEP, mode="data")
            self.host: Host = await self.stack.enter_async_context(hosting(self.served.server))

        self.stage.run(enter())

    def teardown(self) -> None:
        self.stage.run(self.stack.aclose())
        self.stage.run(self.store.close())
        self.stage.close()

    # -- the plain dict ----------------------------------------------------------------------------------

    @property
    def kept(self) -> list[str]:
        return [id for place, id in enumerate(self.notes) if id == self.head or place >= len(self.notes) - KEEP]

    def made(self, result: Json, parent: str | None, expected: list[str]) -> str:
        state = result["state"]
        assert state["parent"] == parent
        assert [note["text"] for note in state["data"]["notes"]] == expected
        self.head = id = state["checkpoint"]
        assert id not in self.notes
        self.notes[id], self.parents[id], self.data[id] = expected, parent, state["data"]
        return id

    def call(self, tool: str, arguments: Json | None = None, **fields: Any) -> Json:
        reply = self.stage.run(self.host.ask("tools/call", {"name": tool, "arguments": arguments or {}, **fields}))
        assert reply.get("error", {}).get("code") in (None, -32005), reply
        return reply

    # -- what happens ------------------------------------------------------------------------------------

    @rule(target=tree, text=texts)
    def add(self, text: str) -> str:
        result = self.call("add_note", {"text": text})["result"]
        return self.made(result, self.head, [*self.notes.get(self.head or "", []), text])

    @rule(target=tree, text=texts, at=tree)
    def add_at(self, text: str, at: str) -> Any:
        reply = self.call("add_note", {"text": text}, checkpoint=at)
        if at not in self.kept:
            assert reply["error"]["data"]["checkpoint"] == at
            return multiple()
        return self.made(reply["result"], at, [*self.notes[at], text])

    @rule(target=tree, text=texts, at=tree)
    def add_to_what_the_host_has(self, text: str, at: str) -> str:
        result = self.call("add_note", {"text": text}, checkpoint=at, state=self.data[at])["result"]
        return self.made(result, at, [*self.notes[at], text])  # although it may be pruned by now

    @rule(target=tree, one=texts, other=texts)
    def add_at_once(self, one: str, other: str) -> Any:
        async def both() -> list[Json]:
            return await asyncio.gather(*(self.host.call("add_note", {"text": text}) for text in (one, other)))

        results = sorted(self.stage.run(both()), key=lambda result: result["state"]["parent"] != self.head)
        before = self.notes.get(self.head or "", [])
        first = [note["text"] for note in results[0]["state"]["data"]["notes"]]
        assert first in ([*before, one], [*before, other])
        second = [*first, other if first[-1] == one else one]
        return multiple(
            *[self.made(result, self.head, said) for result, said in zip(results, (first, second), strict=True)]
        )

    @rule()
    def read(self) -> None:
        result = self.call("list_notes")["result"]
        assert notes_of(result) == self.notes.get(self.head or "", []) and "state" not in result

    @rule(at=tree)
    def read_at(self, at: str) -> None:
        reply = self.call("list_notes", checkpoint=at)
        if at in self.kept:
            assert notes_of(reply["result"]) == self.notes[at] and "state" not in reply["result"]
        else:
            assert reply["error"]["code"] == -32005

    @rule()
    def fail(self) -> None:
        assert self.call("fail")["result"]["isError"]

    @rule(text=texts)
    def be_cancelled(self, text: str) -> None:
        async def cancel() -> None:
            self.served.entered.clear()
            asking = asyncio.ensure_future(self.host.ask("tools/call", {"name": "slow", "arguments": {"text": text}}))
            await self.served.entered.wait()
            await self.host.tell("notifications/cancelled", {"requestId": self.host._last_id})
            asking.cancel()

        self.stage.run(cancel())

    @rule(at=tree)
    def forge(self, at: str) -> None:
        forged = {**self.data[at], "title": "forged"}
        result = self.call("add_note", {"text": "a"}, checkpoint=at, state=forged)["result"]
        assert refusal(result)[0] == "state_tampered"

    @rule(to=tree)
    def roll_back(self, to: str) -> None:
        reply = self.stage.run(roll_back(self.host, to))
        if to in self.kept:
            assert reply["result"] == {"checkpoint": to, "success": True}
            self.head = to
        else:
            assert reply["error"]["code"] == -32005

    @rule()
    def serve_again(self) -> None:
        self.stage.run(self.stack.aclose())
        self.stack = AsyncExitStack()
        self.begin()

    @precondition(lambda self: self.head is not None)
    @invariant()
    def the_author_sees_the_same_tree(self) -> None:
        async def seen() -> tuple[list[str], list[str], list[str]]:
            states = self.served.states
            tree = await states.checkpoints(owner="local")
            ends = await states.branches(owner="local")
            now = [note.text for note in (await states.at(owner="local")).notes]
            return [at.id for at in tree], [at.id for at in ends], now

        kept = self.kept
        parents = {self.parents[id] for id in kept}
        assert self.stage.run(seen()) == (kept, [id for id in kept if id not in parents], self.notes[self.head or ""])


class FileMachine(StateMachine):
    def new_store(self) -> Store:
        self.folder = tempfile.TemporaryDirectory()
        return open_store(f"sqlite:///{Path(self.folder.name) / 'notes.db'}")

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class RedisMachine(StateMachine):
    server: ClassVar[RedisServer]

    def new_store(self) -> Store:
        return open_store(f"{self.server.address}?prefix={secrets.token_hex(8)}:")


@pytest.fixture(autouse=True)
def small_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small contents are kept as patches, too: theirs is the longer way."""
    monkeypatch.setattr(checkpoint_tree, "WHOLE", 0)


def _test_of(machine: type[StateMachine], few: int) -> Any:
    test = machine.TestCase
    test.settings = settings(
        max_examples=examples(few), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return test


TestInMemory = _test_of(StateMachine, 15)
TestInAFile = _test_of(FileMachine, 6)


class TestInRedis(_test_of(RedisMachine, 6)):
    @classmethod
    def setUpClass(cls) -> None:
        RedisMachine.server = RedisServer("--appendonly", "yes").start()

    @classmethod
    def tearDownClass(cls) -> None:
        RedisMachine.server.remove()
