"""Tasks of others: bob, a weaker key of alice, and nobody try to read, answer, cancel and hear of alice's task."""

from __future__ import annotations

from tests.attack.arena import Kind
from tests.attack.controls.identity import (
    ask_for_no_declaration,
    find_tasks_by_half_an_id,
    keep_any_number_of_tasks,
    share_everything,
)
from tests.attack.keys import create
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import Caller, tool_call
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("tasks")
KEYED = Kind("keyed", ("--legacy-sse",))
TAKES: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
YES: Json = {"sure": {"action": "accept", "content": {"value": True}}}
METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


def asked(caller: Caller, method: str, id: object, capabilities: Json | None = None) -> Json:
    """The reply to a task method; an update says yes to what was asked."""
    params: Json = {"taskId": id, **({"inputResponses": YES} if method == "tasks/update" else {})}
    return caller.alone(method, params, capabilities=TAKES if capabilities is None else capabilities)


def started(caller: Caller, word: str) -> str:
    reply = caller.alone("tools/call", tool_call("job", {"word": word}), capabilities=TAKES)
    return str((reply.get("result") or {}).get("taskId"))


def status(caller: Caller, id: str) -> str:
    return str((asked(caller, "tasks/get", id).get("result") or {}).get("status"))


@FAMILY.attack("another's task", Control(share_everything, "^bob, |somebody else confirmed"))
def _(trial: Trial) -> None:
    """A foreign id is answered like one that never was, to the letter, and nothing happens to the task."""
    served = trial.arena.serve(KEYED)
    alice, bob, weak = (
        Caller(served.place, create(served, name, *allowed, scopes=scopes).token)
        for name, allowed, scopes in (
            ("alice", ("ToolInvoke(*)",), "secrets:read"),
            ("bob", ("ToolInvoke(*)",), "secrets:read"),
            ("alice", ("ToolInvoke(echo)",), ""),
        )
    )
    word = f"{trial.random.randrange(10**12)}"
    id = started(alice, word)
    trial.expect(status(alice, id) in ("working", "input_required"), f"alice's task is {status(alice, id)}")
    for name, caller in (("bob", bob), ("a weaker key", weak)):
        for method in METHODS:
            theirs, never = asked(caller, method, id), asked(caller, method, "A" * 32)
            same = (theirs.get("error") or {}).get("message") == (never.get("error") or {}).get("message")
            trial.expect("error" in theirs and same, f"{name}, {method}: {theirs}")
    for method in METHODS:
        reply = asked(Caller(served.place), method, id)
        trial.expect(reply["status"] == 401, f"nobody, {method}: {reply}")
    trial.expect(not served.has_marked(word), "somebody else confirmed alice's task")
    trial.expect(status(alice, id) == "input_required", f"alice's task is {status(alice, id)} after it all")


@FAMILY.attack("ids that are none", Control(find_tasks_by_half_an_id, "^' |^'task:"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED)
    alice = Caller(served.place, create(served, "alice", "ToolInvoke(*)").token)
    id = started(alice, "x")
    near = [
        id[:-1],
        id + "a",
        id.swapcase(),
        f" {id}",
        f"{id}\n",
        f"task:{id}",
        "*",
        "%",
        "../" + id[3:],
        "account:" + "a" * 24,
    ]
    for wrong in (*near, "", 7, None, [id], {"id": id}, "A" * 500_000):
        reply = asked(alice, "tasks/get", wrong)
        trial.expect("error" in reply and reply["status"] in (200, 400, 404, 431), f"{str(wrong)[:40]!r}: {reply}")


@FAMILY.attack("without having declared tasks", Control(ask_for_no_declaration, "^tasks/get with"))
def _(trial: Trial) -> None:
    """The gate comes before the look-up: a known id and an unknown one are refused alike."""
    served = trial.arena.serve(KEYED)
    alice = Caller(served.place, create(served, "alice", "ToolInvoke(*)").token)
    known = started(alice, "x")
    for capabilities in ({}, {"extensions": {}}, {"extensions": {"io.modelcontextprotocol/tasks": 1}}, {"tasks": {}}):
        for method in METHODS:
            for id in (known, "A" * 32):
                code = (asked(alice, method, id, capabilities).get("error") or {}).get("code")
                trial.expect(code == -32021, f"{method} with {capabilities}: {code}")


@FAMILY.attack("more tasks than can be", Control(keep_any_number_of_tasks, "^alice made"), growth=60.0)
def _(trial: Trial) -> None:
    """A flood is refused in time, and others still get their tasks and calls."""
    served = trial.arena.serve(KEYED)
    alice, bob = (Caller(served.place, create(served, name, "ToolInvoke(*)").token) for name in ("alice", "bob"))
    made = refused = 0
    for number in range(150):
        params = tool_call("job", {"word": f"{number:08d}" + "x" * 500_000})
        reply = alice.alone("tools/call", params, capabilities=TAKES)
        is_made = "taskId" in (reply.get("result") or {})
        made, refused = made + is_made, refused + (not is_made)
    trial.expect(refused > 0 and made <= 64, f"alice made {made} tasks of half a megabyte")
    trial.expect(status(bob, started(bob, "y")) in ("working", "input_required"), "bob gets no task")
    trial.expect("result" in bob.call_alone("echo", text="a"), "bob's call is not answered")
