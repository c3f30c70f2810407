"""Monty: an interpreter in Rust without access to the host, in a worker process of its own. Restricted code only.

It knows less Python than CPython does (1.4.0: no `yield`, no inheritance, no `heapq`), so an `error` may come
from Monty and not from the program. If there is a jail, run the program there as well.
"""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from defserve.sandbox.job import EXPLANATION, FRAMES, MESSAGE, REPR, Outcome, RunStop, SandboxJob, with_reason

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontyRuntimeError, MontySession, MontySyntaxError

VERSION = "1.4.0"
# After its own limit, the worker has this many seconds to report it. Then it is killed.
GRACE = 0.05

_loading = threading.Lock()


@cache
def installed() -> bool:
    """Whether Monty is installed in the version whose limits are tested. Another may enforce them differently."""
    if find_spec("pydantic_monty") is None:
        return False
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pydantic-monty") == VERSION
    except PackageNotFoundError:
        return False


def execute(job: SandboxJob, stop: RunStop) -> Outcome:
    """Run a judged job and wait for its end. A sleep takes no time in Monty."""
    started, limits = time.monotonic(), job.limits
    seconds = min(limits.seconds, limits.cpu_seconds or limits.seconds)
    printed = PrintedText(limits.output_bytes)
    with (
        engine()(max_processes=1, request_timeout=seconds + GRACE, feed_duration_limit_grace=GRACE) as pool,
        pool.checkout(
            limits={"max_feed_duration_secs": seconds, "max_memory": limits.memory_bytes},
            os_policy={"sleep": "zero"},
        ) as session,
    ):
        printed.kill = partial(kill, session.worker_pid)
        stop.arm(printed.kill)
        try:
            outcome = _feed(session, job, printed)
        finally:
            stop.disarm()
    stdout = "".join(printed.parts)
    return replace(outcome, stdout=stdout, engine="monty", layers=("interpreter",)).since(started)


def engine() -> type[Monty]:
    """Monty's class, ready for many threads.

    It looks for its worker in the interpreter's paths, and `sysconfig` fills those in without a lock. If several
    threads did that at once, some would find the paths incomplete.
    """
    with _loading:
        sysconfig.get_config_vars()
        from pydantic_monty import Monty

        return Monty


def kill(worker: int | None) -> None:
    """End a worker process, if it is there."""
    # 0 would kill our own process group.
    if worker:
        with suppress(ProcessLookupError):
            os.kill(worker, getattr(signal, "SIGKILL", signal.SIGTERM))


class PrintedText:
    """Collects what is printed. One byte too many kills the worker, which would otherwise print on."""

    def __init__(self, most: int) -> None:
        self.parts: list[str] = []
        self.over = False
        self.kill: Callable[[], object] = bool
        self._left = most

    def __call__(self, stream: str, text: str) -> None:
        if self.over:
            return
        data = text.encode("utf-8", "replace")
        self.parts.append(data[: self._left].decode("utf-8", "ignore"))
        self._left -= len(data)
        if self._left < 0:
            self.over = True
            self.kill()


def _feed(session: MontySession, job: SandboxJob, printed: PrintedText) -> Outcome:
    from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError, MontySyntaxError

    text = job.source.decode("utf-8").removeprefix("\ufeff")
    try:
        last = session.feed_run(text, inputs=json.loads(job.inputs), print_callback=printed)
        value = _result(session, last)
    except MontyError as error:
        if printed.over:
            return Outcome("output", error=EXPLANATION["output"])
        if isinstance(error, MontyRuntimeError | MontySyntaxError):
            return failed(error)
        return killed(isinstance(error, MontyCrashedError) and error.timed_out)
    return valued(value, job.limits.output_bytes)


def _result(session: MontySession, last: Any) -> Any:
    from pydantic_monty import MontyRuntimeError

    try:
        return session.feed_run("result")
    except MontyRuntimeError:
        return last


def killed(timed_out: bool) -> Outcome:
    """The outcome of a program whose worker is gone."""
    if timed_out:
        return Outcome("timeout", error=EXPLANATION["timeout"])
    return Outcome("killed", error="the interpreter of the program was killed")


def failed(error: MontyRuntimeError | MontySyntaxError) -> Outcome:
    """The outcome of a program that raised, or reached a limit of Monty's."""
    name, frames = type(error.exception()).__name__, error.traceback()
    # The error of a limit has no frames; an error of the program has the line it came from.
    if name == "TimeoutError" and not frames:
        return Outcome("timeout", error=EXPLANATION["timeout"])
    if name == "MemoryError":
        return Outcome("memory", error=EXPLANATION["memory"])
    lines = [
        f"  line {frame.line}"
        + (f", in {frame.function_name}" if frame.function_name not in (None, "<module>") else "")
        for frame in frames[-FRAMES:]
    ]
    head = ["Traceback (most recent call last):"] if lines else []
    return Outcome("error", error=with_reason("\n".join([*head, *lines, error.display("type-msg")[:MESSAGE]])))


def valued(value: Any, most: int) -> Outcome:
    """The outcome of a program that ended with a value of at most so many bytes."""
    if measure_value(value, most) > most:
        return Outcome("output", error=EXPLANATION["output"])
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if len(text.encode("utf-8")) > most:
            return Outcome("output", error=EXPLANATION["output"])
        return Outcome("ok", value=from_json(text))
    except (TypeError, ValueError, RecursionError):
        return _represented(value)


def _represented(value: Any) -> Outcome:
    try:
        return Outcome("ok", value=repr(value)[:REPR], is_repr=True)
    except RecursionError:
        return Outcome("error", error="the program's value is nested too deeply or is not JSON")
    except ValueError as error:  # an integer with too many digits
        return Outcome("error", error=f"the value has no text: ValueError: {error}")


def measure_value(value: Any, most: int) -> int:
    """The least that a value of a program takes as text, in bytes. It stops counting above `most`.

    What a program holds once and names often crosses once, and takes its place in a text each time: forty lists, each
    with the one before in it twice, would be a trillion. Whatever keeps, copies or writes a value measures it first.
    """
    size, waiting = 0, [value]
    while waiting and size <= most:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            size += len(one) + 2
            continue
        inner = _parts_of(one)
        size += 1 + (one.bit_length() // 4 if isinstance(one, int) else 0)
        # Each part takes a byte at least: what is over without a look at them is not listed either.
        if size + len(waiting) + len(inner) > most:
            return most + 1
        waiting += inner
    return size


def _parts_of(value: Any) -> Collection[Any]:
    """What a value consists of, as far as its text shows it."""
    if isinstance(value, dict):
        return [*cast("dict[Any, Any]", value).keys(), *cast("dict[Any, Any]", value).values()]
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Collection[Any]", value)
    if isinstance(value, BaseException):
        return value.args
    if isinstance(value, PurePath):
        return (str(value),)
    from pydantic_monty import MontyClassProxy

    return [value.attributes] if isinstance(value, MontyClassProxy) else ()
