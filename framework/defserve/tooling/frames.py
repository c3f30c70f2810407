"""Whose code a frame runs: the author's, or that of Python, a package or defserve."""

from __future__ import annotations

import os
import sysconfig
from traceback import walk_tb
from typing import Final

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHONS: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
PACKAGES: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of packages, wherever they are: `pip install --user` has its own."""


def is_outside(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a file is in none of the folders. Code without a file is in all of them."""
    return not path.startswith(("<", *(folder + os.sep for folder in folders)))


def is_of_author(path: str) -> bool:
    return is_outside(path, (OURS, *PYTHONS)) and not any(folder in path for folder in PACKAGES)


def author_line(error: BaseException) -> str:
    """`file:line` of the author's innermost frame; empty if no code of an author ran."""
    found = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [f"{path}:{line}" for path, line in found if is_of_author(path)]
    return own[-1].removeprefix(os.getcwd() + os.sep) if own else ""
