"""Symbolic links that lead out of the working directory. `judge` looks at text; this looks at the disk.

A word that names a link, or a file behind one, is refused if what it leads to may not be read. Links that a program
meets later, while it walks, are not seen here: options that follow those are refused by the tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from defserve.guard.shell.places import Places
from defserve.guard.verdict import Violation


def find_link(argv: Sequence[str], root: str) -> Violation | None:
    """The first word of a judged command that leads out of `root` through a link, as a violation. Never raises."""
    try:
        top = os.path.realpath(root)
        places = Places(top)
        for word in argv[1:]:
            for path in _paths(word, root):
                real = os.path.realpath(os.path.join(root, path))
                if places.read(real) and not _is_below(real, top):
                    return Violation("place", f"Blocked path: '{word}' leads out of the working directory by a link")
    except (OSError, ValueError) as problem:
        return Violation("place", f"Blocked command: its paths cannot be looked at ({problem})")
    return None


def _paths(word: str, root: str) -> Iterator[str]:
    """What a word may name: itself, and the value in `--file=x`, `if=x` or `-fx`. Other texts were judged before."""
    values = [word, word.partition("=")[2], word[2:] if word[:1] == "-" and word[:2] != "--" else ""]
    for value in filter(None, values):
        inside = not os.path.isabs(value) or _is_below(os.path.normpath(value), os.path.normpath(root))
        if inside and ".." not in value.split("/"):
            yield value


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
