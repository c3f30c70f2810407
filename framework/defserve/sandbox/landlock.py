"""Landlock: from now on this process can open only the listed paths, read-only, and no TCP port at all.

Only opening is restricted: the process can still see whether a path exists, and its size.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from defserve.sandbox.kernel import syscall

# The same numbers on every processor.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3

# ABI → the rights it knows, all of which are taken away: files, TCP (bind, connect), reach (abstract sockets, signals).
FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP = {4: 0b11}
REACH = {6: 0b11}

# These folders are inside the standard library's folder, but hold the host's own code.
FOREIGN = frozenset({"site-packages", "dist-packages"})


def abi() -> int:
    """The kernel's Landlock version; 0 when it has none or has it switched off."""
    try:
        return syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except (OSError, AttributeError):
        return 0


def restrict(version: int, libraries: Iterable[str]) -> None:
    """Leave this thread only the standard library in these directories. Needs `no_new_privs`."""
    attributes = (ctypes.c_uint64 * 3)(*(_known(table, version) for table in (FILES, TCP, REACH)))
    # An older kernel knows a shorter structure. It accepts a longer one only if the rest is zero, as ours is.
    ruleset = syscall(CREATE_RULESET, attributes, ctypes.c_size_t(24), ctypes.c_uint32(0))
    try:
        for path in libraries:
            _allow_library(ruleset, path)
        syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _known(table: dict[int, int], version: int) -> int:
    return max((bits for since, bits in table.items() if since <= version), default=0)


def _allow_library(ruleset: int, path: str) -> None:
    if not os.path.isdir(path):
        if os.path.isfile(path):
            _allow(ruleset, path, READ_FILE)
        return
    _allow(ruleset, path, READ_DIR)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name not in FOREIGN:
                _allow(ruleset, entry.path, READ_FILE)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # A path that does not exist is not granted.
        return
    try:
        rule = (ctypes.c_uint32 * 3)(access, 0, descriptor)
        syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
