"""Floods on a pipe: the excess waits, nothing is refused or lost, and what must get through gets through."""

from __future__ import annotations

import threading
import time

from tests.attack.arena import SERVERS
from tests.attack.controls.bounds import (
    cancel_nothing,
    end_with_the_input,
    gather_lines_of_any_length,
    refuse_the_excess,
    stop_reading_whatever_waits,
)
from tests.attack.speaking.mcp import message, notification, outcome, tool_call
from tests.attack.speaking.pipe import Json, Pipe
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("pipes")
CALLS = 10_000
SECONDS = 60.0


def started(trial: Trial, server: str = "open") -> Pipe:
    folder = trial.arena.folder
    env = {**trial.arena.environment, "ATTACK_MARKS": str(folder / "marks"), "ATTACK_FOLDER": str(folder)}
    return Pipe([*trial.arena.python, "defserve", "run", str(SERVERS / f"{server}.py")], env)


def replies(pipe: Pipe, wanted: set[int], answer: bool = False) -> dict[int, Json]:
    """The replies to these ids, until all are there or nothing more comes."""
    found, deadline = dict[int, Json](), time.monotonic() + SECONDS
    while wanted - found.keys() and time.monotonic() < deadline:
        heard = pipe.next(min(10, deadline - time.monotonic()))
        if heard is None:
            break
        if "method" not in heard:
            found[heard.get("id")] = heard  # type: ignore[index]
        elif answer and "id" in heard:
            pipe.say({"jsonrpc": "2.0", "id": heard["id"], "result": {"action": "accept", "content": {"value": "eve"}}})
    return found


def peak(pid: int) -> float:
    import re
    from pathlib import Path

    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


@FAMILY.attack("the end of input behind 2,000 calls", Control(end_with_the_input, "were answered"))
def _(trial: Trial) -> None:
    """What was written before the end is answered before the server ends."""
    with started(trial) as pipe:
        pipe.open()
        pipe.say(*(message("tools/call", tool_call("echo", {"text": "a"}), n) for n in range(2_000)))
        assert pipe.process.stdin is not None
        pipe.process.stdin.close()
        found = replies(pipe, set(range(2_000)))
        good = sum("result:" in outcome(reply) for reply in found.values())
        trial.expect(good == 2_000, f"{good:,} of 2,000 were answered")
        trial.expect(pipe.process.wait(20) == 0, f"it ended with {pipe.process.returncode}")


@FAMILY.attack("10,000 calls written at once", Control(refuse_the_excess, "were answered", "echo"))
def _(trial: Trial) -> None:
    for tool, arguments in trial.choose({"echo": {"text": "a"}, "slow": {"seconds": 0.01}, "who": {}}):
        with started(trial) as pipe:
            pipe.open()
            before = peak(pipe.process.pid)
            calls = [message("tools/call", tool_call(tool, arguments), n) for n in range(CALLS)]
            writer = threading.Thread(target=pipe.say, args=calls, daemon=True)
            writer.start()
            found = replies(pipe, set(range(CALLS)))
            good = sum("result:" in outcome(reply) for reply in found.values())
            refused = next((outcome(r) for r in found.values() if "result:" not in outcome(r)), "")
            trial.expect(good == CALLS, f"{tool}: {good:,} of {CALLS:,} were answered; {refused}")
            grown = peak(pipe.process.pid) - before
            trial.expect(grown < 40, f"{tool}: {grown:.0f} MB more")


@FAMILY.attack("questions behind a flood", Control(stop_reading_whatever_waits, "were answered"))
def _(trial: Trial) -> None:
    """200 calls that ask, then 1,000 more calls: the answers to the questions get through."""
    with started(trial) as pipe:
        pipe.open({"elicitation": {"form": {}}})
        asking = [message("tools/call", tool_call("ask", {}), n) for n in range(200)]
        plain = [message("tools/call", tool_call("echo", {"text": "a"}), 1_000 + n) for n in range(1_000)]
        threading.Thread(target=pipe.say, args=(*asking, *plain), daemon=True).start()
        wanted = {*range(200), *range(1_000, 2_000)}
        found = replies(pipe, wanted, answer=True)
        good = sum("result:" in outcome(reply) for reply in found.values())
        trial.expect(good == len(wanted), f"{good:,} of {len(wanted):,} were answered")


@FAMILY.attack("cancelling behind a flood", Control(cancel_nothing, "a call after 300 cancelled ones"))
def _(trial: Trial) -> None:
    """Calls that wait for their turn can be cancelled, and a ping does not wait for them."""
    with started(trial) as pipe:
        pipe.open()
        pipe.say(*(message("tools/call", tool_call("slow", {"seconds": 20}), n) for n in range(300)))
        began = time.monotonic()
        alive = pipe.answers()
        trial.expect(alive and time.monotonic() - began < 5, f"a ping behind 300 calls: {alive}")
        pipe.say(*(notification("notifications/cancelled", {"requestId": n}) for n in range(300)))
        pipe.say(message("tools/call", tool_call("echo", {"text": "after"}), "after"))
        reply = pipe.reply("after", 8)
        trial.expect(reply is not None and "after" in outcome(reply), f"a call after 300 cancelled ones: {reply}")


GATHERED = Control(gather_lines_of_any_length, "without an end: .* MB more", "60 MB without an end")


@FAMILY.attack("lines that are too long or broken", GATHERED)
def _(trial: Trial) -> None:
    """A line past the limit, a line without an end, NULs, bytes that are not UTF-8: the next line is answered."""
    lines = {
        "5 MB": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"' + b"x" * 5_000_000 + b'"}}\n',
        "60 MB without an end": b"x" * 60_000_000 + b"\n",
        "NULs": b"\x00" * 100_000 + b"\n",
        "empty lines": b"\n" * 100_000,
        "CR LF": b"\r\n" * 1_000,
        "not UTF-8": b"\xff\xfe\xfd\n",
        "half a message": b'{"jsonrpc":"2.0","id":\n',
        "deep": b"[" * 1_000_000 + b"\n",
    }
    for name, line in trial.choose(lines):
        with started(trial) as pipe:
            pipe.open()
            before = peak(pipe.process.pid)
            pipe.write(line)
            trial.expect(pipe.answers(), f"{name}: no answer afterwards; {pipe.complaints[-200:]!r}")
            if pipe.process.poll() is None:
                grown = peak(pipe.process.pid) - before
                trial.expect(grown < 60, f"{name}: {grown:.0f} MB more")
