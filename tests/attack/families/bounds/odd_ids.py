"""Odd ids and tokens in notifications and replies, to servers and to our own client: answered, refused or ignored."""

from __future__ import annotations

import sys
from typing import Any

from tests.attack.arena import SERVERS, Kind
from tests.attack.controls.bounds import take_any_id
from tests.attack.families.bounds.pipes import started
from tests.attack.speaking.conversation import SocketConversation
from tests.attack.speaking.mcp import Caller, outcome, tool_call
from tests.attack.speaking.pipe import Pipe
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("odd ids")

ODD: list[Any] = [
    [1], [], {}, {"a": 1}, None, True, False, 1.5, -1, 0, 2**70, -(2**70), "", "x" * 100_000, "\u0000", "1", [[[]]],
    ["a", {"b": None}], "__proto__", "\ud83d\ude00", 1e308,
]  # fmt: skip

METHODS = (
    "notifications/cancelled", "notifications/progress", "notifications/initialized", "notifications/message",
    "notifications/roots/list_changed", "notifications/resources/updated", "notifications/mgp.callback.request",
    "notifications/mgp.lifecycle", "notifications/tools/list_changed", "featureSets/update",
    "notifications/elicitation/complete", "notifications/subscriptions/acknowledged", "nothing/known",
)  # fmt: skip


def messages() -> list[Any]:
    """Every notification with every odd value in every place, and replies with odd ids."""
    found: list[Any] = []
    for odd in ODD:
        for method in METHODS:
            places = [odd, *({name: odd} for name in ("requestId", "progressToken", "uri", "id", "_meta"))]
            found += [{"jsonrpc": "2.0", "method": method, "params": params} for params in places]
        found.append({"jsonrpc": "2.0", "id": odd, "result": {}})
        found.append({"jsonrpc": "2.0", "id": odd, "error": odd})
        found.append({"jsonrpc": "2.0", "id": odd, "result": odd, "error": odd})
        found.append({"jsonrpc": "2.0", "id": odd})
        found.append({"jsonrpc": odd, "method": odd, "params": odd})
    return found


def good_ones(sent: list[Any]) -> list[Any]:
    """Those a server may count as broken come one at a time between good ones: it hangs up after 16 in a row."""
    return [each for one in sent for each in (one, {"jsonrpc": "2.0", "id": "between", "method": "ping"})]


@FAMILY.attack("to a server on a pipe", Control(take_any_id, "no answer after|a traceback"))
def _(trial: Trial) -> None:
    sent = messages()
    with started(trial) as pipe:
        pipe.open()
        for at in range(0, len(sent), 100):
            pipe.say(*good_ones(sent[at : at + 100]))
            if not trial.expect(
                pipe.answers(), f"no answer after messages {at} to {at + 99}: {pipe.complaints[-200:]!r}"
            ):
                return
        trial.expect(b"Traceback" not in pipe.complaints, f"a traceback: {pipe.complaints[-300:]!r}")


@FAMILY.attack("to a server over WebSocket", Control(take_any_id, "^after messages|a traceback"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind())
    sent = messages()
    talk = SocketConversation(Caller(served.place))
    talk.open()
    for at in range(0, len(sent), 100):
        for each in good_ones(sent[at : at + 100]):
            talk.send(each)
        said = outcome(talk.ask("tools/call", tool_call("echo", {"text": "here"})))
        if not trial.expect("here" in said, f"after messages {at} to {at + 99}: {said}"):
            break
    talk.close()
    trial.expect("Traceback" not in served.new_log, f"a traceback: {served.new_log[-300:]}")


@FAMILY.attack("to a server over HTTP", Control(take_any_id, ": 500$|a traceback"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind())
    inside = Caller(served.place).open()
    for each in messages():
        answer = inside.post(each)
        trial.expect(answer is not None and answer.status < 500, f"{str(each)[:120]}: {answer and answer.status}")
    said = outcome(inside.call("echo", text="here"))
    trial.expect("here" in said, f"afterwards: {said}")
    trial.expect("Traceback" not in served.new_log, f"a traceback: {served.new_log[-300:]}")


@FAMILY.attack("to our client", Control(take_any_id, "^list, messages|a traceback"))
def _(trial: Trial) -> None:
    """A hostile server sends them before each of its replies; `list` and `call` work all the same.

    Not a reply to "1": some servers answer request 1 so, and it counts.
    """
    hostile = str(SERVERS / "hostile.py")
    total = len(messages())
    size = total // 5 + 1
    for start in range(0, total, size):
        command = ("--", sys.executable, hostile, str(start), str(size))
        for words in (("list", *command), ("call", "echo", "text=here", *command)):
            done = trial.arena.command(*words)
            good = done.returncode == 0 and ("echo" if words[0] == "list" else "here") in done.stdout
            trial.expect(
                good, f"{words[0]}, messages {start} to {start + size - 1}: {done.returncode} {done.stderr[-200:]}"
            )
            trial.expect("Traceback" not in done.stderr, f"{words[0]}: a traceback: {done.stderr[-300:]}")


@FAMILY.attack("to `defserve dev`", Control(take_any_id, "no answer after|a traceback"))
def _(trial: Trial) -> None:
    """The development server stands between a client and its server, and reads both."""
    folder = trial.arena.folder
    env = {**trial.arena.environment, "ATTACK_MARKS": str(folder / "marks"), "ATTACK_FOLDER": str(folder)}
    sent = messages()
    with Pipe([*trial.arena.python, "defserve", "dev", str(SERVERS / "open.py")], env) as pipe:
        pipe.open()
        for at in range(0, len(sent), 200):
            pipe.say(*good_ones(sent[at : at + 200]))
            if not trial.expect(
                pipe.answers(), f"no answer after messages {at} to {at + 199}: {pipe.complaints[-300:]!r}"
            ):
                return
