"""Short tracebacks: the frames of the author's code, without those of what runs it."""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager
from typing import Final

from defserve.cli.log_filters import filtered
from defserve.tooling.frames import OURS, PYTHONS, is_outside

FRAME: Final = re.compile(r'^  File "([^"\n]+)", line .*\n(?:    .*\n)*', re.MULTILINE)
MORE: Final = "(-v shows every frame)"


def brief_tracebacks() -> AbstractContextManager[None]:
    """While the block runs, tracebacks in the log of a server show only the author's frames."""
    return filtered(logging.getLogger("defserve"), _Brief())


class _Brief(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # The traceback arrives as text, because its secrets were removed.
        if isinstance(record.args, tuple):
            record.args = tuple(brief(given) if isinstance(given, str) else given for given in record.args)
        return True


def brief(text: str) -> str:
    """A traceback without the frames of Python, packages and defserve. If none would be left, only ours are hidden."""
    paths = [frame[1] for frame in FRAME.finditer(text)]
    hidden = (OURS, *PYTHONS) if any(is_outside(path, (OURS, *PYTHONS)) for path in paths) else (OURS,)
    shown = FRAME.sub(lambda frame: frame[0] if is_outside(frame[1], hidden) else "", text)
    return text if shown == text else f"{shown.rstrip()}\n{MORE}"
