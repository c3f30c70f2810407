"""A file that is only checked, as JSON: `kernel --check --json`, `gateway --check --json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from defserve.cli.exits import OK, WRONG
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.screen import show
from defserve.errors import UsageError


def show_checked(file: str, check: Callable[[], dict[str, Any]]) -> int:
    """Print whether a file is valid: with what `check` tells of it, or the problem that it raises. The exit code."""
    try:
        told: dict[str, Any] = {"file": file, "valid": True, **check()}
    except UsageError as error:
        told = {"file": file, "valid": False, "problem": error.problem, "where": error.where, "fix": error.fix}
    show(Data(told))
    return OK if told["valid"] else WRONG


def refuse_json() -> UsageError:
    return UsageError("--json goes with --check", fix="add --check, or leave --json out")
