"""Two calls into Linux that Python does not offer: `prctl` and raw system calls. Failures are OSErrors."""

from __future__ import annotations

import ctypes
import os
from functools import cache

NO_NEW_PRIVS = 38
SECCOMP = 22
DEATH_SIGNAL = 1
DROP_BOUNDING = 24
AMBIENT, AMBIENT_CLEAR = 47, 4
CAPSET = {"x86_64": 126, "aarch64": 91}


def syscall(number: int, *arguments: object) -> int:
    """A system call by its number; pointers as ctypes objects."""
    return _checked(_libc().syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: object) -> int:
    """`prctl(option, …)`: integers go as unsigned longs, missing arguments as zeros."""
    longs = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    longs += [ctypes.c_ulong(0)] * (4 - len(longs))
    return _checked(_libc().prctl(ctypes.c_int(option), *longs))


def machine() -> str:
    """The processor this 64-bit process runs on, as Linux spells it; empty if we do not know it."""
    name = os.uname().machine if hasattr(os, "uname") else ""
    return name if name in CAPSET and ctypes.sizeof(ctypes.c_void_p) == 8 else ""


def give_up_privileges() -> None:
    """Drop all capabilities, now and for any later exec. A root user is then only the owner of root's files."""
    prctl(NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            prctl(DROP_BOUNDING, capability)
        except OSError:
            # Unknown to this kernel, or not ours to drop: no_new_privs and the empty sets below still hold.
            break
    try:
        prctl(AMBIENT, AMBIENT_CLEAR)
    except OSError:
        pass
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    syscall(CAPSET[machine()], header, (ctypes.c_uint32 * 6)())


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
