"""Monty: an interpreter in Rust without access to the host, in a worker process of its own. Restricted code only.

It knows less Python than CPython does (1.4.0: no `yield`, no inheritance, no `heapq`), so an `error` may come
from Monty and not from the program. If there is a jail, run the program there as well.

How it works: the interpreter belongs to a process of `workers`, and Monty is not imported here. Its binding makes
Python objects of a program's values, and hashes some: a program can make that last for ever, and nothing can interrupt
it. So that happens there, and here the value is read from JSON text.
"""

from __future__ import annotations

import atexit
import time
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import cast

from pydantic_core import from_json

from defserve.sandbox import frames
from defserve.sandbox.job import STATUS_EXPLANATIONS, Outcome, RunStatus, RunStopper, SandboxJob, explain_program_error
from defserve.sandbox.workers import MAX_ENVELOPE_BYTES, MontyWorker, SandboxPool, WorkerGone

MONTY_VERSION = "1.4.0"

# The process below ends a program at its limit, and says so. If it has said nothing for so many seconds more, it is
# killed. Each further turn of a program may take so many seconds of its own.
PATIENCE, GRACE = 0.5, 0.05

# For programs that call nothing: so many processes stay when nothing runs.
_shared = SandboxPool(kept=2)
atexit.register(_shared.close)


@cache
def is_installed() -> bool:
    """Whether Monty is installed in the version whose limits are tested. Another may enforce them differently."""
    if find_spec("pydantic_monty") is None:
        return False
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pydantic-monty") == MONTY_VERSION
    except PackageNotFoundError:
        return False


def run_in_monty(job: SandboxJob, stop: RunStopper) -> Outcome:
    """Run a judged job and wait for its end. A sleep takes no time in Monty."""
    worker = _shared.acquire_worker()
    started, printed = time.monotonic(), list[str]()
    try:
        stop.set_kill_function(worker.kill)
        try:
            outcome = _converse(worker, job, printed)
        except WorkerGone as gone:
            outcome = make_worker_gone_outcome(gone)
        finally:
            stop.mark_run_ended()
    finally:
        _shared.release_worker(worker)
    return replace(outcome, stdout="".join(printed), engine="monty", layers=("interpreter",)).since(started)


def _converse(worker: MontyWorker, job: SandboxJob, printed: list[str]) -> Outcome:
    limits, room = job.limits, job.limits.output_bytes
    seconds = min(limits.seconds, limits.cpu_seconds or limits.seconds)
    task = {
        "source": job.source.decode("utf-8").removeprefix("\ufeff"),
        "inputs": job.inputs,
        "seconds": seconds,
        "memory_bytes": limits.memory_bytes,
        "value_bytes": limits.output_bytes,
        "room": room,
        "within": seconds + PATIENCE,
    }
    with worker.limit_time(seconds + PATIENCE):
        worker.send(frames.RUN, frames.join_parts(task))
        while True:
            kind, data = worker.receive(
                {frames.PRINTED: room, frames.OUTCOME: limits.output_bytes + MAX_ENVELOPE_BYTES}
            )
            if kind == frames.OUTCOME:
                return decode_outcome(data)
            room -= len(data)
            printed.append(data.decode("utf-8", "replace"))


def make_worker_gone_outcome(gone: WorkerGone) -> Outcome:
    """The outcome of a program whose process is gone."""
    return (
        Outcome("timeout", error=STATUS_EXPLANATIONS["timeout"]) if gone.timed_out else Outcome("killed", error=KILLED)
    )


KILLED = "the interpreter of the program was killed"
REPORTED: dict[str, RunStatus] = {
    name: name for name in cast("tuple[RunStatus, ...]", ("ok", "error", "timeout", "memory", "output", "killed"))
}


def decode_outcome(data: bytes) -> Outcome:
    """The outcome that a process reports. Raises FrameError for what is none."""
    header, text = frames.split_parts(data)
    status, error = REPORTED.get(header.get("status")), header.get("error")
    if status is None:
        raise frames.FrameError("an outcome without a status")
    if status == "ok":
        return Outcome("ok", value=from_json(text), is_repr=header.get("is_repr") is True)
    said = explain_program_error(str(error)) if status == "error" else STATUS_EXPLANATIONS.get(status, KILLED)
    return Outcome(status, error=said)
