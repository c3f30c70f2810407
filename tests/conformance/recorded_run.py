"""What the last full run of the tests found out about the requirements, and of which files.

`make test` records it, `make requirements` prints it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

Outcomes = Mapping[str, Mapping[str, str]]
"""Requirement → test that claims it → how that ended."""


@dataclass(frozen=True)
class Sources:
    """Which files were tested: a commit, and a digest of what was changed since, empty if nothing was."""

    commit: str
    changes: str

    @classmethod
    def current(cls) -> Sources:
        """Those of this checkout. Files that git does not know are not looked at; without git all are alike."""
        changes = _run_git("diff", "HEAD")
        digest = hashlib.sha256(changes).hexdigest()[:12] if changes else ""
        return cls(_run_git("rev-parse", "--short=12", "HEAD").decode().strip(), digest)

    def __str__(self) -> str:
        return (f"commit {self.commit}" if self.commit else "unknown commit") + (
            " with changes" if self.changes else ""
        )


@dataclass(frozen=True)
class RecordedRun:
    ended: str
    sources: Sources
    outcomes: Outcomes

    @classmethod
    def load(cls, path: Path) -> RecordedRun | None:
        """None if there is no record, or none of this form."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(record["ended"], Sources(**record["sources"]), record["outcomes"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def merge(self, later: Outcomes) -> Outcomes:
        """Its outcomes, where tests that were run again have the later ones."""
        return {id: {**self.outcomes.get(id, {}), **later.get(id, {})} for id in {*self.outcomes, *later}}


def _run_git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""
