"""What a parent tells its child: what to serve and how, as one JSON argument."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """`options` are those of `Server.run`. In `report` the child says which files it is made of; `sockets` are its
    inherited file descriptors, and in the folder `sessions` it keeps how its clients opened theirs."""

    target: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    report: str = ""
    sockets: tuple[int, ...] = ()
    sessions: str = ""

    def command(self) -> list[str]:
        # Without bytecode: an edit that keeps the size, in the same second, would find the old one fit for use.
        return [sys.executable, "-B", "-m", "defserve.tooling.devserver.child", json.dumps(asdict(self))]

    def reporting(self, report: str) -> Plan:
        return replace(self, report=report)

    @classmethod
    def read(cls, text: str) -> Plan:
        given = json.loads(text)
        given["sockets"] = tuple(given["sockets"])
        return cls(**given)
