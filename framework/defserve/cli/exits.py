"""The exit codes of commands, and how a command says that something is wrong."""

from __future__ import annotations

from typing import Final

from defserve.errors import DefserveError, UsageError

OK: Final = 0
WRONG: Final = 1
UNREACHABLE: Final = 4
TOOL_FAILED: Final = 5
INTERRUPTED: Final = 130


def complain(text: str, code: int) -> int:
    """Print an error to stderr and return `code`."""
    from defserve.cli.screen.screen import problem_lines, tell

    tell(*problem_lines("error", text))
    return code


def placed(error: DefserveError) -> str:
    """An error with the author's line, if it names none itself. An error of the command line alone has no such line."""
    if not isinstance(error, UsageError) or error.where:
        return str(error)
    from defserve.tooling.frames import author_line

    where = author_line(error)
    return f"{where}: {error}" if where else str(error)
