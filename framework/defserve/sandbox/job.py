"""One program to run: exactly the bytes that were judged, and how to stop it while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from keyword import iskeyword
from threading import Event, Lock
from typing import Any, get_args

from defserve.errors import UsageError
from defserve.guard.code.levels import CodeLevel
from defserve.sandbox.outcome import SandboxLimits

LEVELS: tuple[CodeLevel, ...] = get_args(CodeLevel)
NameList = Collection[str]


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


def make(
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


class RunStop:
    """Lets another thread end a run. When `done` is set, no process of the run is left."""

    def __init__(self) -> None:
        self.done = Event()
        self.stopped = False
        self._begun = False
        self._lock = Lock()
        self._kill: Callable[[], object] | None = None

    def begin(self) -> bool:
        """The run begins, unless it was stopped before."""
        with self._lock:
            self._begun = not self.stopped
            return self._begun

    def arm(self, kill: Callable[[], object]) -> None:
        """From now on `kill` stops the run. It is called at once if the run was stopped before."""
        with self._lock:
            self._kill = kill
            if self.stopped:
                kill()

    def disarm(self) -> None:
        """The run has ended by itself."""
        with self._lock:
            self._kill = None

    def now(self) -> None:
        """Kill the run, or prevent it from beginning."""
        with self._lock:
            self.stopped = True
            if self._kill is not None:
                self._kill()
            if not self._begun:
                self.done.set()
