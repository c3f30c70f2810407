"""The history of a run: every operation with when it began, when it ended, and how.

It is a file of JSON lines to which several processes add. An operation is `ok`, `failed` (it surely did not happen), or
`unknown`: it may have happened, or may still happen. An operation that has no end is unknown.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True)
class Operation:
    """`began` and `ended` are of one clock, which no fault moves."""

    id: str
    kind: str
    client: str
    arguments: dict[str, Any]
    began: float
    ended: float | None = None
    outcome: Outcome = "unknown"
    result: Any = None


class HistoryWriter:
    """Adds operations of one process. `name` is in each id."""

    def __init__(self, path: str | Path, name: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name, self._ids = name, count(1)

    def begin(self, kind: str, client: str, /, **arguments: Any) -> str:
        id = f"{self._name}-{next(self._ids)}"
        self._write({"id": id, "kind": kind, "client": client, "arguments": arguments, "began": time.monotonic()})
        return id

    def end(self, id: str, outcome: Outcome, result: Any = None) -> None:
        self._write({"id": id, "ended": time.monotonic(), "outcome": outcome, "result": result})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def parse_history(lines: Iterable[str]) -> list[Operation]:
    """Operations in the order in which they began."""
    begun: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            words = json.loads(line)
        except ValueError:
            continue  # of a process that was killed while it wrote
        begun.setdefault(words["id"], {}).update(words)
    found = [Operation(**words) for words in begun.values() if "began" in words]
    return sorted(found, key=lambda operation: operation.began)


def make_trace(name: str) -> str:
    """The trace id of the call that has a name."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
