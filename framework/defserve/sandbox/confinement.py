"""What Linux can confine a process with: Landlock, a seccomp filter, and the calls that Python does not offer.

The kernel is asked once which layers it has; nothing is assumed. Importing this does nothing, on any system.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple


class Layers(NamedTuple):
    """The layers that a system has. `landlock` is the version in the kernel, 0 for none."""

    rlimits: bool = False
    landlock: int = 0
    seccomp: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The layers that this system has."""
        return tuple(name for name in ("rlimits", "landlock", "seccomp") if getattr(self, name))

    @property
    def missing(self) -> tuple[str, ...]:
        """The layers that this system lacks. A jail needs all three: each covers what the others cannot."""
        return tuple(name for name in ("rlimits", "landlock", "seccomp") if not getattr(self, name))


@cache
def probe() -> Layers:
    """The layers of this system."""
    rlimits = find_spec("resource") is not None
    if sys.platform != "linux":
        return Layers(rlimits=rlimits)

    return Layers(rlimits=rlimits, landlock=landlock_version(), seccomp=has_seccomp())


# -- Landlock: from now on this process can open only the listed paths, read-only, and no TCP port at all.
#
# Only opening is restricted: the process can still see whether a path exists, and its size.


# The same numbers on every processor.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3

# ABI → the rights it knows, all of which are taken away: files, TCP (bind, connect), reach (abstract sockets, signals).
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP_RIGHTS = {4: 0b11}
REACH_RIGHTS = {6: 0b11}

# These folders are inside the standard library's folder, but hold the host's own code.
FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages"})


def landlock_version() -> int:
    """The kernel's Landlock version; 0 when it has none or has it switched off."""
    try:
        return syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except (OSError, AttributeError):
        return 0


def restrict_files(version: int, libraries: Iterable[str]) -> None:
    """Leave this thread only the standard library in these directories. Needs `no_new_privs`."""
    attributes = (ctypes.c_uint64 * 3)(
        *(_select_rights(table, version) for table in (FILE_RIGHTS, TCP_RIGHTS, REACH_RIGHTS))
    )
    # An older kernel knows a shorter structure. It accepts a longer one only if the rest is zero, as ours is.
    ruleset = syscall(CREATE_RULESET, attributes, ctypes.c_size_t(24), ctypes.c_uint32(0))
    try:
        for path in libraries:
            _allow_library(ruleset, path)
        syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _select_rights(table: dict[int, int], version: int) -> int:
    return max((bits for since, bits in table.items() if since <= version), default=0)


def _allow_library(ruleset: int, path: str) -> None:
    if not os.path.isdir(path):
        if os.path.isfile(path):
            _allow_path(ruleset, path, READ_FILE)
        return
    _allow_path(ruleset, path, READ_DIR)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name not in FOREIGN_FOLDERS:
                _allow_path(ruleset, entry.path, READ_FILE)


def _allow_path(ruleset: int, path: str, access: int) -> None:
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


# -- A seccomp filter that lists what a Python process needs to compute. Every other system call is refused.
#
# A list of allowed calls also keeps out calls that nobody thought of: io_uring, ptrace, mount, chmod, and future ones.


AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
ACTION_AVAILABLE = 2
NO_CALL = -1

# name → its number on x86_64 and on aarch64. Frequent ones first: the filter is read from the top.
FREE_CALLS: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "futex": (202, 98), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214),
    "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, NO_CALL),
    "lstat": (6, NO_CALL), "statx": (332, 291), "clock_gettime": (228, 113), "getrandom": (318, 278),
    "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68), "close_range": (436, 436),
    "dup": (32, 23), "dup2": (33, NO_CALL), "dup3": (292, 24), "pipe": (22, NO_CALL), "pipe2": (293, 59),
    "access": (21, NO_CALL), "faccessat": (269, 48), "faccessat2": (439, 439),
    "getdents64": (217, 61), "getcwd": (79, 17), "statfs": (137, 43), "fstatfs": (138, 44),
    "select": (23, NO_CALL), "pselect6": (270, 72), "poll": (7, NO_CALL), "ppoll": (271, 73),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, NO_CALL), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigtimedwait": (128, 137), "rt_sigpending": (127, 136), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, NO_CALL), "alarm": (37, NO_CALL),
    "setitimer": (38, 103), "getitimer": (36, 102), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, NO_CALL), "times": (100, 153),
    "getrusage": (98, 165), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getpgrp": (111, NO_CALL), "getpgid": (121, 155), "getsid": (124, 156), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158),
    "getresuid": (118, 148), "getresgid": (120, 150), "uname": (63, 160), "sysinfo": (99, 179),
    "getcpu": (309, 168), "umask": (95, 166), "set_tid_address": (218, 96), "set_robust_list": (273, 99),
    "rseq": (334, 293), "recvfrom": (45, 207), "getsockname": (51, 204), "getsockopt": (55, 209),
    "shutdown": (48, 210), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip


class ArgumentRule(NamedTuple):
    """A condition on one argument: its low half, masked, is one of the values (and its high half zero, if `whole`)."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    whole: bool = False


OPEN_FLAGS = 0o3 | 0o100 | 0o1000 | 0o10000000  # access mode, O_CREAT, O_TRUNC, O_PATH
THREAD_ONLY = 0x00010000 | 0x7E020080  # CLONE_THREAD must be set, the CLONE_NEW* ones must not
FCNTL = (0, 1, 2, 3, 4, 1030, 1032)  # no F_SETOWN: with O_ASYNC it would send signals to any process
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
UNIX, STREAM = 1, 1


def list_guarded_calls(pid: int) -> dict[str, tuple[tuple[int, int], tuple[ArgumentRule, ...]]]:
    """The calls that depend on their arguments: name → numbers, and the checks that must all hold."""
    return {
        "open": ((2, NO_CALL), (ArgumentRule(1, (0,), OPEN_FLAGS),)),
        "openat": ((257, 56), (ArgumentRule(2, (0,), OPEN_FLAGS),)),
        "fcntl": ((72, 25), (ArgumentRule(1, FCNTL),)),
        "ioctl": ((16, 29), (ArgumentRule(1, IOCTL),)),
        "clone": ((56, 220), (ArgumentRule(0, (0x00010000,), THREAD_ONLY),)),
        "kill": ((62, 129), (ArgumentRule(0, (pid,)),)),
        "tgkill": ((234, 131), (ArgumentRule(0, (pid,)),)),
        "prlimit64": ((302, 261), (ArgumentRule(0, (0, pid)), ArgumentRule(2, (0,), whole=True))),
        # The event loop of asyncio wakes itself through such a pair; a stream one cannot be pointed elsewhere.
        "socketpair": ((53, 199), (ArgumentRule(0, (UNIX,)), ArgumentRule(1, (STREAM,), 0xF))),
        "sendto": ((44, 206), (ArgumentRule(4, (0,), whole=True),)),
    }


# A filter cannot see the flags of clone3. glibc then uses clone, but only after this error.
ABSENT = {"clone3": (435, 435)}

BPF_LOAD, BPF_AND, BPF_EQUAL, BPF_AT_LEAST, BPF_RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X32 = 0x40000000

FilterInstruction = tuple[int, int, int, int]
REFUSE: FilterInstruction = (BPF_RETURN, 0, 0, ERRNO | errno.EPERM)
PASS: FilterInstruction = (BPF_RETURN, 0, 0, ALLOW)


def has_seccomp() -> bool:
    """Whether this kernel takes a filter that refuses, and we know this processor's numbers."""
    if not (processor := get_processor_name()):
        return False
    try:
        syscall(SECCOMP_CALL[processor], ACTION_AVAILABLE, 0, ctypes.byref(ctypes.c_uint32(ERRNO)))
    except OSError:
        return False
    return True


def install_syscall_filter(pid: int) -> None:
    """Filter this thread and all it starts. Cannot be undone. Needs `no_new_privs`."""
    instructions = build_filter(get_processor_name(), pid)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    text = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(text)))
    prctl(SECCOMP, 2, header)


def build_filter(processor: str, pid: int) -> list[FilterInstruction]:
    """The filter as BPF: wrong architecture kills, listed calls pass, the rest is refused."""
    column = COLUMN[processor]
    code: list[FilterInstruction] = [
        (BPF_LOAD, 0, 0, 4),
        (BPF_EQUAL, 1, 0, AUDIT_ARCH[processor]),
        (BPF_RETURN, 0, 0, KILL),
    ]
    code += [(BPF_LOAD, 0, 0, 0), (BPF_AT_LEAST, 0, 1, X32), REFUSE]
    for numbers in FREE_CALLS.values():
        if numbers[column] != NO_CALL:
            code += [(BPF_EQUAL, 0, 1, numbers[column]), PASS]
    for numbers, checks in list_guarded_calls(pid).values():
        if numbers[column] != NO_CALL:
            body = [instruction for check in checks for instruction in _verify_filter(check)] + [PASS]
            code += [(BPF_EQUAL, 0, len(body), numbers[column]), *body]
    for numbers in ABSENT.values():
        code += [(BPF_EQUAL, 0, 1, numbers[column]), (BPF_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    return [*code, REFUSE]


def _verify_filter(check: ArgumentRule) -> list[FilterInstruction]:
    """Continues if the argument passes, else refuses. It overwrites the call's number, so the code after it returns."""
    low = 16 + 8 * check.argument
    code: list[FilterInstruction] = [(BPF_LOAD, 0, 0, low), (BPF_AND, 0, 0, check.mask)]
    code += [(BPF_EQUAL, len(check.values) - place, 0, value) for place, value in enumerate(check.values)]
    code.append(REFUSE)
    if check.whole:
        code += [(BPF_LOAD, 0, 0, low + 4), (BPF_EQUAL, 1, 0, 0), REFUSE]
    return code


# -- Two calls into Linux that Python does not offer: `prctl` and raw system calls. Failures are OSErrors.


NO_NEW_PRIVS = 38
SECCOMP = 22
SET_PARENT_DEATH_SIGNAL = 1
DROP_BOUNDING = 24
AMBIENT, AMBIENT_CLEAR = 47, 4
CAPSET = {"x86_64": 126, "aarch64": 91}


def syscall(number: int, *arguments: object) -> int:
    """A system call by its number; pointers as ctypes objects."""
    return _check_errno(_libc().syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: object) -> int:
    """`prctl(option, …)`: integers go as unsigned longs, missing arguments as zeros."""
    longs = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    longs += [ctypes.c_ulong(0)] * (4 - len(longs))
    return _check_errno(_libc().prctl(ctypes.c_int(option), *longs))


def get_processor_name() -> str:
    """The processor this 64-bit process runs on, as Linux spells it; empty if we do not know it."""
    name = os.uname().machine if hasattr(os, "uname") else ""
    return name if name in CAPSET and ctypes.sizeof(ctypes.c_void_p) == 8 else ""


def drop_privileges() -> None:
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
    syscall(CAPSET[get_processor_name()], header, (ctypes.c_uint32 * 6)())


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _check_errno(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
