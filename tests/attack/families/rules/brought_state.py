"""State that a caller brought never becomes the server's own, whatever it does in between, and moves nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

from tests.attack.arena import Kind
from tests.attack.controls.rules import (
    let_anyone_move_the_shared_head,
    prove_every_id,
    prove_every_state,
)
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import Caller, outcome
from tests.attack.trial import Control, Family, Trial
from tests.protocols.mcpl.hosts import Host, hosting
from tests.protocols.mcpl.state.state_hosts import host_as, notes_of, roll_back
from tests.protocols.mcpl.state.test_proof import BOB, BROUGHT, EVE, STEPS, STRANGER, Guarded, guarded, made
from tests.raw import ERAS

FAMILY = Family("brought state")
BURNT = "the dangerous tool takes it"


async def is_burnt(host: Host, **more: Any) -> bool:
    reply = await host.ask("tools/call", {"name": "burn", "arguments": {}, **more})
    return "result" in reply and not reply["result"].get("isError")


async def ways_to_burn(host: Host, state: Json) -> list[str]:
    """The ways on which the dangerous tool takes this state."""
    ways: dict[str, Json] = {
        "by its id": {"checkpoint": state["checkpoint"]},
        "with its id": {"checkpoint": state["checkpoint"], "state": state["data"]},
        "in another order": {"checkpoint": state["checkpoint"], "state": dict(reversed(state["data"].items()))},
        "alone": {"state": state["data"]},
        "as the head": {},
    }
    return [way for way, more in ways.items() if await is_burnt(host, **more)]


Step = Callable[[Host, Json], Awaitable[Json]]


async def launder(version: str, steps: tuple[Step, ...], notes: Guarded) -> str:
    """Bring a state, take these steps, and show what came of it to the dangerous tool."""
    async with hosting(notes.server, version) as host:
        honest = await made(host, "ours")
        if not await is_burnt(host, checkpoint=honest["checkpoint"], state=honest["data"]):
            return "an honest state is refused"
        state = await made(host, state=BROUGHT)
        for step in steps:
            state = await step(host, state)
        taken = await ways_to_burn(host, state)
    return f"{BURNT} {', '.join(taken)}" if taken else ""


def chains() -> dict[str, tuple[str, tuple[Step, ...]]]:
    """No step, one, two, and three of the same."""
    one = [(step,) for step in STEPS]
    all = [(), *one, *product(STEPS, repeat=2), *((step,) * 3 for step in STEPS)]
    eras = [ERAS[0], ERAS[-1]]
    return {
        f"{eras[number % 2]}: {' + '.join(step.__name__ for step in steps) or 'no step'}": (eras[number % 2], steps)
        for number, steps in enumerate(all)
    }


@FAMILY.attack(
    "over several steps",
    Control(prove_every_state, BURNT, "*: again + from_its_checkpoint", here=True),
    Control(prove_every_id, f"{BURNT}.* with its id", "*: again + from_its_checkpoint", here=True),
)
def _(trial: Trial) -> None:
    for name, (version, steps) in trial.choose(chains()):
        said = asyncio.run(launder(version, steps, guarded(mode="data")))
        trial.expect(not said, f"{name}: {said}")


async def other_doors(tool: str) -> str:
    """Dangerous tools that ask for the state themselves."""
    async with hosting(guarded(mode="data").server) as host:
        ours, brought = await made(host, "ours"), await made(host, state=BROUGHT)
        arguments = {"a": ours["checkpoint"], "b": brought["checkpoint"]} if tool == "compare" else {}
        result = await host.call(tool, arguments)
        return "" if result.get("isError") else f"{BURNT}: {notes_of(result) if tool == 'look' else result}"


@FAMILY.attack("by other doors", Control(prove_every_state, BURNT, "look", here=True))
def _(trial: Trial) -> None:
    for tool, _ in trial.choose(dict.fromkeys(("look", "compare", "touch"))):
        trial.expect(not (said := asyncio.run(other_doors(tool))), f"{tool}: {said}")


async def of_another_caller() -> list[str]:
    """What one caller has proved, shown by another."""
    notes = guarded(mode="data")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE) as eve:
        state = await made(bob, "a")
        # Her own head is empty, and hers.
        return [way for way in await ways_to_burn(eve, state) if way != "as the head"]


SHARED = "others read"


async def move_head(who: Any, version: str) -> list[str]:
    """What others of a shared state read after a caller has brought states and named old checkpoints."""
    notes = guarded(mode="data", per="server")
    found: list[str] = []
    async with host_as(notes.server, EVE) as other, host_as(notes.server, who, version) as caller:
        first, _ = await made(other, "a"), await made(other, "b")
        brought = await made(caller, state=BROUGHT)
        for told, more in {
            "a brought state": {"state": BROUGHT},
            "its checkpoint": {"checkpoint": brought["checkpoint"]},
            "both": {"state": brought["data"], "checkpoint": brought["checkpoint"]},
            "an old checkpoint": {"checkpoint": first["checkpoint"]},
            "an old state": {"state": first["data"]},
        }.items():
            await caller.ask("tools/call", {"name": "add_note", "arguments": {"text": "mine"}, **more})
            if (seen := notes_of(await other.call("list_notes"))) != ["a", "b"]:
                found.append(f"after {told} {SHARED} {seen}")
                break
        result = (await roll_back(caller, brought["checkpoint"])).get("result", {})
        if result.get("success"):
            found.append(f"{SHARED} what a caller has rolled back to")
    return found


@FAMILY.attack(
    "heads that others share",
    Control(let_anyone_move_the_shared_head, f"after .* {SHARED}", "bob*", here=True),
)
def _(trial: Trial) -> None:
    people = {"bob": BOB, "a stranger": STRANGER}
    cases = {f"{name}, {era}": (who, era) for name, who in people.items() for era in (ERAS[0], ERAS[-1])}
    for name, (who, era) in trial.choose(cases):
        found = asyncio.run(move_head(who, era))
        trial.expect(not found, f"{name}: {'; '.join(found)}")
    trial.expect(not (taken := asyncio.run(of_another_caller())), f"of another caller: {BURNT} {', '.join(taken)}")


MCPL: Json = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}


@FAMILY.attack("over HTTP", Control(prove_every_state, "has run"), Control(prove_every_id, "pair: .*has run"))
def _(trial: Trial) -> None:
    """A session with a real process: the tool that must not run would leave a mark."""
    served = trial.arena.serve(Kind("notebook"))
    bob = Caller(served.place, "b" * 40).open(MCPL)

    def call(tool: str, word: str, **more: Any) -> Json:
        return bob.ask("tools/call", {"name": tool, "arguments": {"word": word}, **more})

    ours = call("add", "ours")
    trial.expect("burnt" in outcome(call("burn", "honest")), f"an honest state is refused: {outcome(ours)}")
    state = call("add", "x", state={"words": ["brought"]})["result"]["state"]
    for step in range(3):
        ways: dict[str, Json] = {
            "head": {},
            "id": {"checkpoint": state["checkpoint"]},
            "pair": {"checkpoint": state["checkpoint"], "state": state["data"]},
            "content": {"state": state["data"]},
        }
        for way, more in ways.items():
            word = f"{way}-{step}-{trial.random.randrange(10**9)}"
            got = outcome(call("burn", word, **more))
            trial.expect(not served.has_marked(word), f"step {step}, {way}: burn has run: {got}")
        state = call("add", f"y{step}", **ways[trial.random.choice(["head", "id", "pair"])])["result"]["state"]
