"""Programs whose values take for ever to become Python objects, in a process of its own: one that hangs is killed.

It prints how each of them ended, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

from defserve import Server, ToolError
from defserve.code_mode import CodeMode
from defserve.sandbox import SandboxLimits, monty, run_async
from defserve.sandbox.callouts import ProgramCallBudget, ProgramPause, SandboxProgram
from defserve.sandbox.job import RunStopper, make_sandbox_job
from defserve.sandbox.workers import MontyWorker, SandboxPool

SECONDS = 0.5

# A tuple that is small, and has a trillion parts when its hash is computed.
DEEP = "x = 1\nfor i in range(40):\n    x = (x, x)\n"

RUNS = {
    "last value": f"{DEEP}{{x}}",
    "result": f"{DEEP}result = {{x}}",
    "key of the last value": f"{DEEP}{{x: 1}}",
    "inner value": f"{DEEP}[1, {{'a': [{{x}}]}}]",
    "frozenset": f"{DEEP}frozenset([x])",
}
CALLS = {
    "argument": f"{DEEP}f({{x}})",
    "named argument": f"{DEEP}f(a={{x}})",
    "key of an argument": f"{DEEP}f({{x: 1}})",
    "argument that is awaited": f"{DEEP}await f({{x}})",
    "argument of gathered calls": f"{DEEP}import asyncio\nawait asyncio.gather(f({{x}}), f({{x: 1}}))",
    "argument of call_tool": f"{DEEP}await call_tool('f', {{'a': {{x}}}})",
    "argument of a call that nothing waits for": f"{DEEP}y = call_tool('f', {{'a': {{x: 1}}}})\n1",
    "argument after a call": f"f(1)\n{DEEP}f({{x}})",
}


class RecordingWorkers(SandboxPool):
    """Remembers the processes that it gave."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.taken: list[MontyWorker] = []

    def acquire_worker(self) -> MontyWorker:
        worker = super().acquire_worker()
        self.taken.append(worker)
        return worker


def is_left(group: int) -> bool:
    """Whether a process of this group goes on. Those that nobody has reaped yet do not."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                state, _, its_group = file.read().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


async def run_on_loop(report: dict[str, Any]) -> None:
    """In the sandbox and in code mode, while something ticks on the event loop."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    server = Server("hostile", "1", code_mode=CodeMode(compute_seconds=SECONDS))

    @server.tool
    async def f(a: Any = None) -> None: ...

    ticking = asyncio.create_task(tick())
    limits = SandboxLimits(seconds=SECONDS)
    for name, source in RUNS.items():
        began = ticks
        outcome = await run_async(source, level="strict", limits=limits)
        report[f"sandbox: {name}"] = [outcome.status, ticks - began]
    async with server.connect() as client:
        for name, source in {**RUNS, **CALLS}.items():
            began = ticks
            try:
                status = str(await client.call("run_code", code=source))
            except ToolError as error:
                status = "timeout" if "the program ran out of time" in str(error) else str(error)
            report[f"code mode: {name}"] = [status, ticks - began]
        report["code mode: next"] = await client.call("run_code", code="1 + 1")
    # A run that is cancelled ends at once, and leaves nothing.
    task = asyncio.create_task(run_async(RUNS["last value"], level="strict", limits=SandboxLimits(seconds=60)))
    await asyncio.sleep(0.5)
    began_at = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    report["cancelled"] = [task.cancelled(), time.monotonic() - began_at < 20]
    ticking.cancel()


def stop_program(report: dict[str, Any]) -> None:
    """A program is stopped from another thread while its value is converted."""
    workers = RecordingWorkers(1)
    budget = ProgramCallBudget(10, 1_000_000)
    program = SandboxProgram(workers, f"print('before')\n{RUNS['last value']}", SandboxLimits(seconds=60), bool, budget)
    steps: list[Any] = []
    thread = threading.Thread(target=lambda: steps.append(program.start()))
    thread.start()
    while not program.printed:
        time.sleep(0.01)
    time.sleep(0.3)
    program.stop()
    thread.join(20)
    program.close()
    report["stopped"] = [step.status if not isinstance(step, ProgramPause) else "pause" for step in steps]
    report["stopped: printed"] = program.printed
    time.sleep(0.5)  # they are killed, and end when the kernel comes to it
    report["stopped: left"] = [is_left(worker.pid) for worker in workers.taken]
    workers.close()


def main() -> None:
    report: dict[str, Any] = {}
    asyncio.run(run_on_loop(report))
    stop_program(report)
    report["next"] = monty.run_in_monty(make_sandbox_job("1 + 1", "strict", {}, None), RunStopper()).value
    report["imported"] = "pydantic_monty" in sys.modules
    print(json.dumps(report))


if __name__ == "__main__":
    main()
