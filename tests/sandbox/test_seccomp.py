"""The filter itself, read by a small BPF machine: what it answers to a system call on either processor."""

from __future__ import annotations

import errno

from defserve.sandbox import confinement
from tests.rows import for_each_row

PID = 4242
REFUSED = confinement.ERRNO | errno.EPERM
ABSENT = confinement.ERRNO | errno.ENOSYS
PROCESSORS = ("x86_64", "aarch64")

# name → its number on x86_64 and aarch64, from the kernel's headers.
DANGEROUS = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None), "socket": (41, 198),
    "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "ptrace": (101, 117), "mount": (165, 40),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "openat2": (437, 437),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "setrlimit": (160, 164), "prctl": (157, 167),
    "chmod": (90, None), "fchmodat": (268, 53), "chown": (92, None), "fchownat": (260, 54), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat2": (316, 276), "mkdirat": (258, 34), "symlinkat": (266, 36),
    "linkat": (265, 37), "mknodat": (259, 33), "truncate": (76, 45), "utimensat": (280, 88), "setxattr": (188, 5),
    "memfd_create": (319, 279), "shmget": (29, 194), "mq_open": (240, 180), "chroot": (161, 51), "setuid": (105, 146),
    "reboot": (169, 142), "init_module": (175, 105), "kexec_load": (246, 104), "seccomp": (317, 277),
}  # fmt: skip


def answer(processor: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the filter on one call, as the kernel would."""
    data = {0: number, 4: confinement.AUDIT_ARCH[processor] if architecture is None else architecture}
    for place in range(6):
        value = arguments[place] if place < len(arguments) else 0
        data[16 + 8 * place], data[20 + 8 * place] = value & 0xFFFFFFFF, value >> 32
    code = confinement.build_filter(processor, PID)
    at = register = 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == confinement.BPF_RETURN:
            return operand
        if operation == confinement.BPF_LOAD:
            register = data[operand]
        elif operation == confinement.BPF_AND:
            register &= operand
        else:
            held = register == operand if operation == confinement.BPF_EQUAL else register >= operand
            at += if_true if held else if_false


@for_each_row("processor", PROCESSORS)
@for_each_row("name", DANGEROUS)
def test_what_reaches_the_host_is_refused(processor: str, name: str) -> None:
    number = DANGEROUS[name][PROCESSORS.index(processor)]
    if number is not None:
        assert answer(processor, number) == REFUSED


@for_each_row("processor", PROCESSORS)
def test_what_computing_needs_passes(processor: str) -> None:
    for numbers in confinement.FREE_CALLS.values():
        if (number := numbers[PROCESSORS.index(processor)]) != confinement.NO_CALL:
            assert answer(processor, number) == confinement.ALLOW


@for_each_row(
    ("name", "arguments", "passes"),
    [
        ("openat", (0, 0, 0o2000000), True),
        ("openat", (0, 0, 1), False),
        ("openat", (0, 0, 2), False),
        ("openat", (0, 0, 0o100), False),
        ("openat", (0, 0, 0o1000), False),
        ("openat", (0, 0, 0o10000000), False),
        ("clone", (0x3D0F00,), True),
        ("clone", (17,), False),
        ("clone", (0x3D0F00 | 0x10000000,), False),
        ("clone", (0x3D0F00 | 0x40000000,), False),
        ("kill", (PID, 9), True),
        ("kill", (1, 9), False),
        ("kill", (0, 9), False),
        ("kill", (0xFFFFFFFF, 9), False),
        ("tgkill", (PID, PID, 6), True),
        ("tgkill", (1, 1, 6), False),
        ("prlimit64", (0, 9, 0, 0x7FFF00000000), True),
        ("prlimit64", (0, 9, 0x7FFF00000000, 0), False),
        ("prlimit64", (0, 9, 0x1000, 0), False),
        ("prlimit64", (1, 9, 0, 0x1000), False),
        ("fcntl", (1, 3), True),
        ("fcntl", (1, 8, 1), False),
        ("fcntl", (1, 10, 9), False),
        ("fcntl", (1, 15), False),
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False),
        ("ioctl", (0, 0x8901), False),
        ("socketpair", (1, 1 | 0o2000000), True),
        ("socketpair", (1, 2), False),
        ("socketpair", (2, 1), False),
        ("sendto", (3, 0x1000, 1, 0, 0), True),
        ("sendto", (3, 0x1000, 1, 0, 0x7FFF00000000), False),
    ],
)
@for_each_row("processor", PROCESSORS)
def test_some_calls_depend_on_their_arguments(
    processor: str, name: str, arguments: tuple[int, ...], passes: bool
) -> None:
    number = confinement.list_guarded_calls(PID)[name][0][PROCESSORS.index(processor)]
    assert answer(processor, number, *arguments) == (confinement.ALLOW if passes else REFUSED)


@for_each_row("processor", PROCESSORS)
def test_clone3_looks_absent_so_that_threads_fall_back_to_clone(processor: str) -> None:
    assert answer(processor, 435) == ABSENT


@for_each_row("processor", PROCESSORS)
def test_calls_of_another_architecture_kill(processor: str) -> None:
    assert answer(processor, 0, architecture=0x40000003) == confinement.KILL


def test_the_x32_numbers_are_no_way_around() -> None:
    assert answer("x86_64", confinement.X32 | 59) == REFUSED
    assert answer("x86_64", confinement.X32 | 0) == REFUSED


@for_each_row("processor", PROCESSORS)
@for_each_row("number", [462, 500, 999, 100_000])
def test_calls_that_do_not_exist_yet_are_refused(processor: str, number: int) -> None:
    assert answer(processor, number) == REFUSED


@for_each_row("processor", PROCESSORS)
def test_no_jump_leaves_the_program(processor: str) -> None:
    code = confinement.build_filter(processor, PID)
    for at, (operation, if_true, if_false, _) in enumerate(code):
        if operation in (confinement.BPF_EQUAL, confinement.BPF_AT_LEAST):
            assert max(if_true, if_false) < 256
            assert at + 1 + max(if_true, if_false) < len(code)
    assert len(code) <= 4096
