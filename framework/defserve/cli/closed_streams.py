"""Standard streams that a shell has closed (`>&-`). A command takes them for empty ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Final

MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


@contextmanager
def opened() -> Generator[None]:
    """While the block runs, a stream that is closed is the null device. So no other file gets its descriptor."""
    with ExitStack() as stack:
        for name, mode in MODES.items():
            if getattr(sys, name) is None:
                setattr(sys, name, stack.enter_context(open(os.devnull, mode, encoding="utf-8")))
                stack.callback(setattr, sys, name, None)
        yield
