"""Random steps of two callers, with states of their own and states they made up, against a plain model of proof.

The model knows of each content, tree by tree, whether the server made its whole line. What a dangerous tool was given
must be known to it, and what others share must never hold a word that somebody brought.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from pydantic import BaseModel

from defserve import Context, Server, State, dangerous
from defserve.auth.principals import Principal, make_anonymous_principal
from defserve.protocols.mcpl.state.ownership import SHARED_OWNER_ID, StateOwnerKind
from defserve.state import States
from defserve.stores.checkpoints import checkpoint_tree
from defserve.stores.checkpoints.checkpoint_tree import TreeKey
from defserve.stores.store import MemoryStore
from tests.effort import examples
from tests.protocols.mcpl.hosts import Host, Json
from tests.protocols.mcpl.state.state_hosts import SET, Notebook, Notes, host_as, refusal, roll_back
from tests.protocols.mcpl.state.test_state_machine import Stage
from tests.raw import ERAS

CALLERS = {"ann": Principal("ann"), "bo": Principal("bo"), "stranger": make_anonymous_principal("203.0.113.7")}
texts = st.text("ab", min_size=1, max_size=2)
callers = st.sampled_from(sorted(CALLERS))
eras = st.sampled_from(ERAS)


class Copy(BaseModel):
    """What another set keeps."""

    text: str = ""


class Seen(NamedTuple):
    """A checkpoint that a caller was told."""

    caller: str
    id: str
    data: Json


class ProofMachine(RuleBasedStateMachine):
    per: StateOwnerKind = "principal"
    told = Bundle("told")

    def __init__(self) -> None:
        super().__init__()
        self.stage, self.stack, self.store = Stage(), AsyncExitStack(), MemoryStore()
        self.proved_ids: set[str] = set()
        self.proved: set[tuple[str, str]] = set()
        self.copies: dict[str, bool] = {}
        self.heads: dict[str, str | None] = {}
        self.burnt: list[str] = []
        self.starts = 0
        self.hosts: dict[tuple[str, str], Host] = {}

    @initialize()
    def begin(self) -> None:
        notes = Notes(Server("notes", "1", store=self.store, secret="s" * 32), mode="data", per=self.per, keep=50)
        self.declare_copying(notes)

        @notes.set.tool
        @dangerous(confirm=False)
        async def burn(book: State[Notebook]) -> str:
            self.burnt.append(book.model_dump_json())
            return "burnt"

        @notes.set.tool
        async def clear(book: State[Notebook]) -> str:
            book.notes.clear()
            book.title = ""
            return "cleared"

        async def enter() -> None:
            for version in ERAS:
                for name, who in CALLERS.items():
                    host = await self.stack.enter_async_context(host_as(notes.server, who, version))
                    self.hosts[name, version] = host

        self.served, self.starts = notes, self.starts + 1
        self.stage.run(enter())

    def declare_copying(self, notes: Notes) -> None:
        """Tools that copy what they read, in their set or into another, and dangerous ones that look for it."""
        other = notes.server.feature_set("other.edit", "Copies")
        copies: States[Copy] = other.state(Copy, mode="data", per=self.per, keep=50)

        @notes.server.resource("notes://{id}")
        async def notes_at(id: str) -> str:
            return (await notes.states.at(id)).model_dump_json()

        @notes.set.tool
        async def restore(id: str, nested: bool, ctx: Context, book: State[Notebook]) -> str:
            if nested:
                found = Notebook.model_validate_json((await ctx.read_resource(f"notes://{id}"))[0]["text"])
            else:
                found = await notes.states.at(id)
            book.notes, book.title = found.notes, found.title
            return "restored"

        @notes.set.tool
        async def publish(book: State[Notebook]) -> str:
            made = await copies.update(lambda copy: setattr(copy, "text", book.model_dump_json()))
            return "published" if made is not None else "the same"

        @notes.server.tool
        @dangerous(confirm=False)
        async def look(id: str, ctx: Context) -> str:
            self.burnt.append((await ctx.read_resource(f"notes://{id}"))[0]["text"])
            return "looked"

        @other.tool
        @dangerous(confirm=False)
        async def burn_copy(copy: State[Copy]) -> str:
            self.burnt.append(copy.text)
            return "burnt"

    def teardown(self) -> None:
        self.stage.run(self.stack.aclose())
        self.stage.close()

    # -- the model ---------------------------------------------------------------------------------------

    def owner(self, caller: str, era: str) -> str:
        if self.per == "server":
            return "everyone"
        # A stranger is its session, or an address.
        return f"{caller} {era} {self.starts}" if caller == "stranger" else caller

    def brancher(self, caller: str, era: str) -> str:
        """Who owns what a caller makes off the head."""
        if self.per != "server":
            return self.owner(caller, era)
        return f"branches of {caller} {era} {self.starts}" if caller == "stranger" else f"branches of {caller}"

    def call(self, caller: str, era: str, tool: str, arguments: Json | None = None, **brought: Any) -> Json:
        host = self.hosts[caller, era]
        reply = self.stage.run(host.ask("tools/call", {"name": tool, "arguments": arguments or {}, **brought}))
        assert reply.get("error", {}).get("code") in (None, -32005), reply
        return reply.get("result") or {}

    def is_proved(self, caller: str, era: str, brought: Json) -> bool:
        """Whether what a call starts from is ours, as the rule has it."""
        owner, content, id = self.owner(caller, era), brought.get("state"), brought.get("checkpoint")
        if id is not None:
            return id in self.proved_ids
        if content is not None:
            return any((one, words(content)) in self.proved for one in (owner, self.brancher(caller, era)))
        head = self.heads.get(owner)
        return head is None or head in self.proved_ids

    def change(
        self, caller: str, era: str, tool: str, arguments: Json | None = None, reads: str | None = None, **brought: Any
    ) -> Seen | None:
        ours = self.is_proved(caller, era, brought) and (reads is None or reads in self.proved_ids)
        owner, before = self.owner(caller, era), self.heads.get(self.owner(caller, era))
        result = self.call(caller, era, tool, arguments, **brought)
        if (state := result.get("state")) is None:
            return None
        id, data = state["checkpoint"], state["data"]
        at_head = not brought or (before is not None and state["parent"] == before)
        moves_head = self.per != "server" or (at_head and ours)
        if ours:
            self.proved_ids.add(id)
            self.proved.add((owner if moves_head else self.brancher(caller, era), words(data)))
        if moves_head:
            self.heads[owner] = id
        return Seen(caller, id, data)

    # -- what happens ------------------------------------------------------------------------------------

    @rule(target=told, caller=callers, era=eras, text=texts)
    def add(self, caller: str, era: str, text: str) -> Any:
        return self.kept(self.change(caller, era, "add_note", {"text": text}))

    @rule(target=told, caller=callers, era=eras, text=texts, title=st.sampled_from(["", "brought"]))
    def bring(self, caller: str, era: str, text: str, title: str) -> Any:
        """What is brought says so, or looks just like what others made."""
        state = {"notes": [{"id": 1, "text": text}], "title": title}
        return self.kept(self.change(caller, era, "add_note", {"text": text}, state=state))

    @rule(target=told, caller=callers, era=eras, at=told, text=texts, how=st.sampled_from(["id", "pair", "alone"]))
    def start_from(self, caller: str, era: str, at: Seen, text: str, how: str) -> Any:
        brought: Json = {"checkpoint": at.id} if how != "alone" else {}
        brought |= {"state": at.data} if how != "id" else {}
        return self.kept(self.change(caller, era, "add_note", {"text": text}, **brought))

    @rule(target=told, caller=callers, era=eras, at=told)
    def clear(self, caller: str, era: str, at: Seen) -> Any:
        return self.kept(self.change(caller, era, "clear", checkpoint=at.id))

    @rule(target=told, caller=callers, era=eras, at=told, source=told, nested=st.booleans(), names=st.booleans())
    def restore(self, caller: str, era: str, at: Seen, source: Seen, nested: bool, names: bool) -> Any:
        """Copy what a checkpoint has, starting from another one or from the head."""
        brought: Json = {"checkpoint": at.id} if names else {}
        arguments = {"id": source.id, "nested": nested}
        return self.kept(self.change(caller, era, "restore", arguments, reads=source.id, **brought))

    @rule(caller=callers, era=eras, at=told, how=st.sampled_from(["head", "id", "forged"]))
    def publish(self, caller: str, era: str, at: Seen, how: str) -> None:
        """Copy the state into another set."""
        brought: Json = {"checkpoint": at.id} if how == "id" else {}
        brought |= {"state": {**at.data, "title": "forged"}} if how == "forged" else {}
        ours, owner = self.is_proved(caller, era, brought), self.owner(caller, era)
        result = self.call(caller, era, "publish", **brought)
        if not result.get("isError") and result.get("content", [{}])[0].get("text") == "published":
            assert ours or self.per != "server"
            self.copies[owner] = ours and self.copies.get(owner, True)

    @rule(caller=callers, era=eras)
    def burn_copy(self, caller: str, era: str) -> None:
        self.burnt.clear()
        result = self.call(caller, era, "burn_copy")
        if self.burnt:
            assert self.copies.get(self.owner(caller, era), True)
        elif caller != "stranger":
            assert not self.copies.get(self.owner(caller, era), True), result

    @rule(caller=callers, era=eras, at=told)
    def look(self, caller: str, era: str, at: Seen) -> None:
        """A dangerous tool reads a resource, which reads the state."""
        self.burnt.clear()
        self.call(caller, era, "look", {"id": at.id})
        assert not self.burnt or at.id in self.proved_ids

    def kept(self, seen: Seen | None) -> Any:
        found: list[Seen] = [seen] if seen is not None else []
        return multiple(*found)

    @rule(caller=callers, era=eras, to=told)
    def roll_back(self, caller: str, era: str, to: Seen) -> None:
        reply = self.stage.run(roll_back(self.hosts[caller, era], to.id))
        if reply.get("result", {}).get("success") is True:
            self.heads[self.owner(caller, era)] = to.id

    @rule()
    def restart(self) -> None:
        self.stage.run(self.stack.aclose())
        self.stack = AsyncExitStack()
        self.begin()

    @rule(caller=callers, era=eras, at=told, how=st.sampled_from(["head", "id", "pair", "alone", "forged"]))
    def burn(self, caller: str, era: str, at: Seen, how: str) -> None:
        brought: Json = {"checkpoint": at.id} if how in ("id", "pair") else {}
        brought |= {"state": at.data} if how in ("pair", "alone") else {}
        brought |= {"state": {**at.data, "title": "forged"}} if how == "forged" else {}
        ours = self.is_proved(caller, era, brought)
        self.burnt.clear()
        result = self.call(caller, era, "burn", **brought)
        if self.burnt:
            assert ours, (caller, how, at)
        elif result.get("isError") and ours and caller != "stranger":
            # It belongs to somebody else; nothing else may refuse what is ours.
            assert refusal(result)[0] in ("state_tampered", "checkpoint_not_found"), result

    @invariant()
    def what_others_share_holds_nothing_that_was_brought(self) -> None:
        if self.per != "server" or not hasattr(self, "served"):
            return
        now = self.stage.run(self.served.states.at()).model_dump_json()
        assert "brought" not in now and "forged" not in now
        head = self.stage.run(self.shared_head())
        assert head == self.heads.get("everyone")

    async def shared_head(self) -> str | None:
        trees = await self.served.states.trees()
        return (await trees.load_tree(TreeKey(SET, SHARED_OWNER_ID))).head


class SharedProofMachine(ProofMachine):
    per: StateOwnerKind = "server"


def words(content: Json) -> str:
    return json.dumps(content, sort_keys=True)


@pytest.fixture(autouse=True)
def small_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_tree, "WHOLE", 0)


def _test_of(machine: type[ProofMachine]) -> Any:
    test = machine.TestCase
    checks: Any = list(HealthCheck)
    test.settings = settings(
        max_examples=examples(12), stateful_step_count=20, deadline=None, suppress_health_check=checks
    )
    return test


TestEachCallersOwn = _test_of(ProofMachine)
TestShared = _test_of(SharedProofMachine)
