"""One program to run: exactly the bytes that were judged, how to stop it while it runs, its limits and outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from keyword import iskeyword
from threading import Event, Lock
from typing import Any, Literal, get_args

from defserve.errors import UsageError, explain_arguments
from defserve.guard.code.allowed_names import CodeLevel
from defserve.guard.verdict import Violation
from defserve.limits import is_positive_number

LEVELS: tuple[CodeLevel, ...] = get_args(CodeLevel)
NameList = Collection[str]


# -- What a run may use, and its outcome. Values are JSON copies: no object of the program leaves its process.


MiB = 1024 * 1024


@explain_arguments
@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one run may use, including the start of its process."""

    seconds: float = 5.0
    """Wall-clock time from the start of the process. Then it is killed."""
    cpu_seconds: float | None = None
    """Processor time, rounded up to whole seconds. By default the same as `seconds`."""
    memory_bytes: int = 256 * MiB
    """Address space (jail; the interpreter itself takes about 40 MiB of it) or heap (Monty)."""
    output_bytes: int = MiB
    """The limit of what is printed, and also of the value. One byte more ends the run."""

    def __post_init__(self) -> None:
        for name in ("seconds", "cpu_seconds", "memory_bytes", "output_bytes"):
            value = getattr(self, name)
            if value is not None and not is_positive_number(value):
                raise UsageError(
                    f"SandboxLimits({name}={value!r}) must be positive and finite", fix="leave it out for the default"
                )


@dataclass(frozen=True, slots=True)
class SandboxJob:
    """What to run. Made before the judge sees it, so that nothing can be swapped in between."""

    source: bytes
    level: CodeLevel
    inputs: str = "{}"
    """The program's first variables, as JSON text: a copy from the start."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    allow: NameList | None = None
    block: NameList | None = None
    trust: NameList = ()

    @property
    def digest(self) -> str:
        return sha256(self.source).hexdigest()


def make_sandbox_job(
    source: str | bytes, level: CodeLevel, inputs: Mapping[str, Any] | None, limits: SandboxLimits | None
) -> SandboxJob:
    """A job from a caller's arguments. Raises UsageError for inputs that are not JSON or cannot be variables."""
    if level not in LEVELS:
        raise UsageError(f"there is no level {level!r}", fix=f"use one of {', '.join(LEVELS)}")
    # A lone surrogate becomes bytes that are not UTF-8, which the judge refuses.
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
    return SandboxJob(data, level, _variables(inputs or {}), limits or SandboxLimits())


def _variables(inputs: Mapping[str, Any]) -> str:
    for name in inputs:
        # A leading underscore would let an input replace the hooks and builtins that restricted code runs on.
        if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            raise UsageError(f"{name!r} cannot be the name of an input", fix="use a plain name without a leading _")
    try:
        return json.dumps(dict(inputs), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the inputs are not JSON: {error}", fix="pass plain data") from None


class RunStopper:
    """Lets another thread end a run. When `done` is set, no process of the run is left."""

    def __init__(self) -> None:
        self.done = Event()
        self.stopped = False
        self._begun = False
        self._lock = Lock()
        self._kill: Callable[[], object] | None = None

    def try_begin_run(self) -> bool:
        """The run begins, unless it was stopped before."""
        with self._lock:
            self._begun = not self.stopped
            return self._begun

    def set_kill_function(self, kill: Callable[[], object]) -> None:
        """From now on `kill` stops the run. It is called at once if the run was stopped before."""
        with self._lock:
            self._kill = kill
            if self.stopped:
                kill()

    def mark_run_ended(self) -> None:
        """The run has ended by itself."""
        with self._lock:
            self._kill = None

    def stop_run(self) -> None:
        """Kill the run, or prevent it from beginning."""
        with self._lock:
            self.stopped = True
            if self._kill is not None:
                self._kill()
            if not self._begun:
                self.done.set()


RunStatus = Literal["ok", "rejected", "error", "timeout", "memory", "output", "killed"]

# How many characters of a value's `repr` are reported.
MAX_REPR_LENGTH = 1_000

STATUS_EXPLANATIONS: dict[RunStatus, str] = {
    "timeout": "the program ran out of time",
    "memory": "the program ran out of memory",
    "output": "the program printed or returned more than it may",
}

NO_PACKAGES = "(the sandbox has modules of the standard library only, and none of the packages installed here)"


def explain_program_error(error: str) -> str:
    """The text of a program's error. For a module that is not there it says why: it may well be installed."""
    is_missing = error.rpartition("\n")[2].startswith("ModuleNotFoundError")
    return f"{error}\n{NO_PACKAGES}" if is_missing else error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. It is true only if the program ran to its end.

    The program says what it printed, its value and its error. It cannot say the rest: that it was judged and confined,
    by what, and that it was ended.

    | status | meaning |
    |---|---|
    | `ok` | it ran to its end; `value` is its result |
    | `rejected` | the judge refused it and nothing ran; see `violations` |
    | `error` | it raised, or exited without a result; `error` says what |
    | `timeout`, `output` | it reached that limit |
    | `memory` | it reached that limit, or raised MemoryError itself |
    | `killed` | a signal ended it: a crash, or the system |
    """

    status: RunStatus
    value: Any = None
    """The program's variable `result` or, without one, its last line if that is an expression."""
    is_repr: bool = False
    """The value was not JSON: `value` is its `repr`, shortened."""
    stdout: str = ""
    """What it printed, on either stream, up to the limit."""
    error: str | None = None
    """Text for the author of the program. It names lines of the source and no path of the host."""
    violations: tuple[Violation, ...] = ()
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of a rejected program: what the judge would allow instead."""
    engine: Literal["monty", "jail"] | None = None
    """What ran it; None if nothing ran."""
    layers: tuple[str, ...] = ()
    """What confined it: `("rlimits", "landlock", "seccomp")` for a jail, `("interpreter",)` for Monty."""
    duration_ms: float = 0.0

    def __bool__(self) -> bool:
        return self.status == "ok"

    def since(self, started: float) -> Outcome:
        """The same, with the time that passed since that moment of the monotonic clock."""
        return replace(self, duration_ms=(time.monotonic() - started) * 1_000)
