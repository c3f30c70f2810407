"""What code mode costs: 50 calls that code makes, beside the same 50 calls by the client, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from defserve import Server
from defserve.client import Client

from .measure import Run
from .targets import SUBJECT

CALLS = 50
TRIES = 5
CODE = f"total = 0\nfor n in range({CALLS}):\n    total += add(a=n, b=1)\ntotal"
AT_ONCE = f"import asyncio\nsum(await asyncio.gather(*[add(a=n, b=1) for n in range({CALLS})]))"
TOTAL = sum(range(CALLS)) + CALLS


def measure_code(run: Run) -> None:
    """The best of a few tries in each round: what disturbs a run can only make it slower."""
    for turn in range(run.plan.stream_rounds):
        run.say(f"code mode {turn + 1}/{run.plan.stream_rounds}")
        direct, one_by_one, together = asyncio.run(_measured())
        run.results.add(f"code/{CALLS} calls by the client", SUBJECT, direct)
        run.results.add(f"code/{CALLS} calls by code", SUBJECT, one_by_one)
        run.results.add(f"code/{CALLS} calls by code, at once", SUBJECT, together)
        run.results.add("code-over/one by one", SUBJECT, one_by_one - direct)


CODE_MODE: dict[str, Callable[[Run], None]] = {"code-mode": measure_code}


async def _measured() -> tuple[float, float, float]:
    """Milliseconds of the calls made directly, by code one after the other, and by code at once."""
    server = Server("sums", "1", code_mode=True)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with server.connect() as client:
        await _run(client, "1")  # the first run waits for its worker
        direct = [await _direct(client) for _ in range(TRIES)]
        one_by_one = [await _run(client, CODE) for _ in range(TRIES)]
        together = [await _run(client, AT_ONCE) for _ in range(TRIES)]
    return min(direct), min(one_by_one), min(together)


async def _direct(client: Client) -> float:
    began, total = perf_counter(), 0
    for n in range(CALLS):
        total += await client.call("add", a=n, b=1)
    return _milliseconds(began, total)


async def _run(client: Client, code: str) -> float:
    began = perf_counter()
    result = await client.call("run_code", code=code)
    return _milliseconds(began, TOTAL if code == "1" else result["result"])


def _milliseconds(began: float, total: object) -> float:
    if total != TOTAL:
        raise RuntimeError(f"the sum is {total}, not {TOTAL}")
    return (perf_counter() - began) * 1_000
