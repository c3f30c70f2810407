"""What a run may use, and its outcome. Values are JSON copies: no object of the program leaves its process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from defserve.errors import UsageError
from defserve.guard.verdict import Violation

RunStatus = Literal["ok", "rejected", "error", "timeout", "memory", "output", "killed"]

MiB = 1024 * 1024

# How much of a failure is reported: frames of its traceback, characters of its message, characters of a `repr`.
FRAMES, MESSAGE, REPR = 10, 2_000, 1_000

EXPLANATION: dict[RunStatus, str] = {
    "timeout": "the program ran out of time",
    "memory": "the program ran out of memory",
    "output": "the program printed or returned more than it may",
}


NO_PACKAGES = "(the sandbox has modules of the standard library only, and none of the packages installed here)"


def with_reason(error: str) -> str:
    """The text of a program's error. For a module that is not there it says why: it may well be installed."""
    is_missing = error.rpartition("\n")[2].startswith("ModuleNotFoundError")
    return f"{error}\n{NO_PACKAGES}" if is_missing else error


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
            if value is not None and not value > 0:
                raise UsageError(
                    f"SandboxLimits({name}={value!r}) must be positive", fix="leave it out for the default"
                )


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
