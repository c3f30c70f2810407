"""The exit codes of commands, how a command reports an error, and standard streams that a shell has closed.

Every command line starts with this module, so it imports almost nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from defserve.errors import DefserveError

EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_UNREACHABLE: Final = 4
EXIT_TOOL_FAILED: Final = 5
EXIT_INTERRUPTED: Final = 130


def print_error(text: str, code: int) -> int:
    """Print an error to stderr and return `code`."""
    from defserve.cli.screen import format_problem, show_stderr

    show_stderr(*format_problem("error", text))
    return code


def format_located_error(error: DefserveError) -> str:
    """An error with the author's line, if it names none itself. An error of the command line alone has no such line."""
    from defserve.errors import UsageError

    if not isinstance(error, UsageError) or error.where:
        return str(error)
    from defserve.client.targets import find_author_line

    where = find_author_line(error)
    return f"{where}: {error}" if where else str(error)


# -- Standard streams that a shell has closed (`>&-`). A command takes them for empty ones.


MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


@contextmanager
def replace_closed_streams() -> Generator[None]:
    """While the block runs, a stream that is closed is the null device. So no other file gets its descriptor."""
    with ExitStack() as stack:
        for name, mode in MODES.items():
            if getattr(sys, name) is None:
                setattr(sys, name, stack.enter_context(open(os.devnull, mode, encoding="utf-8")))
                stack.callback(setattr, sys, name, None)
        yield
