"""A seccomp filter that lists what a Python process needs to compute. Every other system call is refused.

A list of allowed calls also keeps out calls that nobody thought of: io_uring, ptrace, mount, chmod, and future ones.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from defserve.sandbox.kernel import SECCOMP, machine, prctl, syscall

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
ACTION_AVAILABLE = 2
NONE = -1

# name → its number on x86_64 and on aarch64. Frequent ones first: the filter is read from the top.
FREE: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "futex": (202, 98), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214),
    "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, NONE),
    "lstat": (6, NONE), "statx": (332, 291), "clock_gettime": (228, 113), "getrandom": (318, 278),
    "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68), "close_range": (436, 436),
    "dup": (32, 23), "dup2": (33, NONE), "dup3": (292, 24), "pipe": (22, NONE), "pipe2": (293, 59),
    "access": (21, NONE), "faccessat": (269, 48), "faccessat2": (439, 439),
    "getdents64": (217, 61), "getcwd": (79, 17), "statfs": (137, 43), "fstatfs": (138, 44),
    "select": (23, NONE), "pselect6": (270, 72), "poll": (7, NONE), "ppoll": (271, 73),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, NONE), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigtimedwait": (128, 137), "rt_sigpending": (127, 136), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, NONE), "alarm": (37, NONE),
    "setitimer": (38, 103), "getitimer": (36, 102), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, NONE), "times": (100, 153),
    "getrusage": (98, 165), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getpgrp": (111, NONE), "getpgid": (121, 155), "getsid": (124, 156), "getuid": (102, 174),
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


def guarded(pid: int) -> dict[str, tuple[tuple[int, int], tuple[ArgumentRule, ...]]]:
    """The calls that depend on their arguments: name → numbers, and the checks that must all hold."""
    return {
        "open": ((2, NONE), (ArgumentRule(1, (0,), OPEN_FLAGS),)),
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

LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X32 = 0x40000000

FilterInstruction = tuple[int, int, int, int]
REFUSE: FilterInstruction = (RETURN, 0, 0, ERRNO | errno.EPERM)
PASS: FilterInstruction = (RETURN, 0, 0, ALLOW)


def supported() -> bool:
    """Whether this kernel takes a filter that refuses, and we know this processor's numbers."""
    if not (processor := machine()):
        return False
    try:
        syscall(SECCOMP_CALL[processor], ACTION_AVAILABLE, 0, ctypes.byref(ctypes.c_uint32(ERRNO)))
    except OSError:
        return False
    return True


def install(pid: int) -> None:
    """Filter this thread and all it starts. Cannot be undone. Needs `no_new_privs`."""
    instructions = program(machine(), pid)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    text = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(text)))
    prctl(SECCOMP, 2, header)


def program(processor: str, pid: int) -> list[FilterInstruction]:
    """The filter as BPF: wrong architecture kills, listed calls pass, the rest is refused."""
    column = COLUMN[processor]
    code: list[FilterInstruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[processor]), (RETURN, 0, 0, KILL)]
    code += [(LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), REFUSE]
    for numbers in FREE.values():
        if numbers[column] != NONE:
            code += [(EQUAL, 0, 1, numbers[column]), PASS]
    for numbers, checks in guarded(pid).values():
        if numbers[column] != NONE:
            body = [instruction for check in checks for instruction in _verify(check)] + [PASS]
            code += [(EQUAL, 0, len(body), numbers[column]), *body]
    for numbers in ABSENT.values():
        code += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    return [*code, REFUSE]


def _verify(check: ArgumentRule) -> list[FilterInstruction]:
    """Continues if the argument passes, else refuses. It overwrites the call's number, so the code after it returns."""
    low = 16 + 8 * check.argument
    code: list[FilterInstruction] = [(LOAD, 0, 0, low), (AND, 0, 0, check.mask)]
    code += [(EQUAL, len(check.values) - place, 0, value) for place, value in enumerate(check.values)]
    code.append(REFUSE)
    if check.whole:
        code += [(LOAD, 0, 0, low + 4), (EQUAL, 1, 0, 0), REFUSE]
    return code
