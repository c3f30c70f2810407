"""The server of a cluster, on each node: `defserve run served.py --workers 2`, with its places in the environment.

Every tool takes a name that no other call has, so the history says which call did what. What a tool does outside of the
stores is a line in the file `CLUSTER_EFFECTS`, which no fault reaches.
"""

from __future__ import annotations

import asyncio
import os
import time

from pydantic import BaseModel

from defserve import Context, Limits, Server, State, dangerous
from defserve.auth import ApiKeys
from defserve.server import EventSettings

RETRIES = 3
STORE = os.environ["CLUSTER_STORE"]


class Ledger(BaseModel):
    """Lines are only added."""

    lines: list[str] = []


class Move(BaseModel):
    name: str


server = Server(
    "cluster",
    "1",
    store=STORE,
    shared=os.environ["CLUSTER_SHARED"],
    audit=STORE,
    auth=ApiKeys(STORE),
    experimental=[EventSettings(max_events=1_000_000, max_bytes=1 << 30)],
    limits=Limits(
        rate=100_000, burst=100_000, in_flight=500, tasks=100_000, task_heartbeat=4, drain=8, sessions=10_000,
        sessions_per_principal=10_000, sessions_per_address=10_000,
    ),
)  # fmt: skip
ledgers = server.state(Ledger, keep=20)


def note(line: str) -> None:
    # One write to a file that is only appended to: lines of several processes do not mix.
    file = os.open(os.environ["CLUSTER_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@server.tool
async def echo(name: str) -> str:
    return name


@server.tool
async def append(name: str, ledger: State[Ledger]) -> int:
    """Add a line; its place."""
    ledger.lines.append(name)
    return len(ledger.lines) - 1


@server.tool
async def read(ledger: State[Ledger]) -> list[str]:
    """All lines."""
    return ledger.lines


@server.tool
async def count(name: str, total: int, ctx: Context) -> str:
    """Say the numbers up to a total, one after the other."""
    for number in range(total):
        ctx.log.info(f"{name} {number}")
        await asyncio.sleep(0.05)
    return f"{name} {total}"


@server.tool(task="required")
async def once(name: str, seconds: float) -> str:
    """Run once, whatever happens."""
    note(f"begin {name}")
    await asyncio.sleep(seconds)
    note(f"end {name}")
    return name


@server.tool(task="required", retry=RETRIES)
async def again(name: str, seconds: float) -> str:
    """Run again if the process dies."""
    note(f"begin {name}")
    await asyncio.sleep(seconds)
    note(f"end {name}")
    return name


@server.event
def moved() -> Move:
    """Something moved."""
    ...  # noqa: PIE790  (type checkers want it)


@server.tool
async def emit(name: str, ctx: Context) -> str:
    """Emit an event of that name. It is in the log when this answers."""
    await ctx.emit_event(moved, Move(name=name), event_id=name)
    return name


@server.tool
@dangerous("com.example.wipe")
async def wipe(name: str) -> str:
    """What nobody may do without a trace."""
    note(f"wipe {name}")
    return name


@server.tool
async def now() -> float:
    """The clock of the node."""
    return time.time()


if mutant := os.environ.get("CLUSTER_MUTANT"):
    from tests.cluster.mutants import MUTANTS

    MUTANTS[mutant].apply()
