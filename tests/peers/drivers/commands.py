"""Command lines of peers that are programs, for drivers that this project's own interpreter runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from telling import PLAN

MODULES = Path(PLAN["package"]) / "node_modules"


def node(script: str, *arguments: str) -> list[str]:
    """A script of the peer's package, run by Node."""
    return [PLAN["node"], str(MODULES / script), *arguments]


def output(command: list[str], seconds: float = 40) -> str:
    """All that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    return done.stdout or done.stderr
