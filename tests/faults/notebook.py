"""A served notebook (`examples/notes.py`), as a process that can be killed, spoken to over its pipes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.process import ROOT, Broken, Json, ServedProcess, complaint

EXAMPLE = ROOT / "examples" / "notes.py"
FEW = Path(__file__).with_name("few_kept.py")
SET = "notes.edit"

_MCPL: Json = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}


class Notebook(ServedProcess):
    """Starts with the object. `seconds` is what it took until the store had answered for the first time, without the
    time in which others had the processors."""

    def __init__(
        self,
        store: str,
        program: Path = EXAMPLE,
        *,
        speaks_mcpl: bool = True,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        began = time.monotonic()
        super().__init__([str(program)], {"NOTES_STORE": store}, prepare)
        offer = {"capabilities": _MCPL if speaks_mcpl else {}, "clientInfo": {"name": "faults", "version": "1"}}
        if (wrong := complaint(self.ask("initialize", {"protocolVersion": "2025-11-25", **offer}))) is not None:
            raise Broken(f"the server does not open: {wrong}")
        self._write({"method": "notifications/initialized"})
        self.texts: list[str] = self.read()
        self.seconds = time.monotonic() - began - _kept_waiting(self.process.pid)

    def add(self, text: str) -> int:
        return self.send("tools/call", {"name": "add_note", "arguments": {"text": text}})

    def roll_back(self, checkpoint: str) -> int:
        return self.send("state/rollback", {"featureSet": SET, "checkpoint": checkpoint})

    def read(self, **where: str) -> list[str]:
        """The notes, or those of a checkpoint. Raises Broken."""
        return self.value("list_notes", **where)

    def value(self, tool: str, **where: str) -> Any:
        """What a tool without arguments gives back. Raises Broken."""
        answer = self.ask("tools/call", {"name": tool, "arguments": {}, **where})
        if (wrong := complaint(answer)) is not None:
            raise Broken(f"{tool} failed, {where}: {wrong}")
        return json.loads(answer["result"]["content"][0]["text"])

    def try_to_add(self, text: str) -> str | None:
        """What was wrong, if something was."""
        return complaint(self.ask("tools/call", {"name": "add_note", "arguments": {"text": text}}))


def _kept_waiting(pid: int) -> float:
    """For how many seconds a process was ready to run and did not."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
