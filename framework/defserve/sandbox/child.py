"""What the jailed process does: take a job, confine itself, run it, report. Called in a process that `jail` started.

Its arguments are the folder of this package, two descriptors and the sha256 of the source. The job comes on stdin: one
line of JSON, then the bytes of the source. The first descriptor is told how far the process came before the program
began, and is closed then: the program never has it. The second is told how the program ended. The program can write to
it too, so it carries nothing but what a program may say of itself.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import signal
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from defserve.sandbox.confinement import Layers

SOURCE = "<code>"

# How much of a failure is reported. `MAX_REPR` is `MAX_REPR_LENGTH` of the parent, which is not imported here.
MAX_FRAMES, MAX_MESSAGE, MAX_REPR = 10, 2_000, 1_000

# Memory kept in reserve, so that a program that used up all memory can still be reported.
RESERVE = 1024 * 1024

# Modules that need the system's shared libraries, which are out of reach once the process is confined.
NATIVE = ("_hashlib", "zlib", "_bz2", "_lzma", "_uuid", "_decimal", "pyexpat")
NATIVE_BY_WORD = {b"ssl": "_ssl", b"sqlite": "_sqlite3", b"dbm": "_dbm", b"asyncio": "_ssl"}

ChildReport = dict[str, Any]
Compiler = Callable[[ast.Module], Any]

# The compiler, the names the program starts with, and how long its value may be.
ProgramStart = tuple[Compiler, dict[str, Any], int]


def main() -> None:
    package, startup, result, digest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # The program must not learn where the host keeps its packages.
    sys.argv[:], sys.orig_argv[:] = [""], [""]
    header, _, source = sys.stdin.buffer.read().partition(b"\n")
    is_judged = hashlib.sha256(source).hexdigest() == digest
    begun, start = begin(json.loads(header), source, package) if is_judged else ({"status": "mismatch"}, None)
    write(startup, begun)
    os.close(startup)
    if start is not None:
        write(result, finish(source, *start))
    # At once: no exit handler and no thread of the program runs again.
    os._exit(0)


def begin(job: Mapping[str, Any], source: bytes, package: str) -> tuple[ChildReport, ProgramStart | None]:
    """Confine this process. The program may run only if this gives its start."""
    library = [path for path in sys.path if path != package]
    sys.path += job["path"]
    try:
        compiler, namespace = prepare(job, source)
        from defserve.sandbox.confinement import Layers

        sys.path[:] = library
        sys.path_importer_cache.clear()
        confine(Layers(*job["layers"]), job["limits"], library)
        if os.getppid() != job["parent"]:
            raise ProcessLookupError("the host ended before the kernel was told to end this process with it")
    except MemoryError:
        return {"status": "memory"}, None
    except Exception as error:
        return {"status": "unconfined", "error": f"{type(error).__name__}: {error}"[:MAX_MESSAGE]}, None
    return {"status": "confined"}, (compiler, namespace, job["limits"]["output_bytes"])


def finish(source: bytes, compiler: Compiler, namespace: dict[str, Any], most: int) -> ChildReport:
    """Run the program, and describe_error its end."""
    try:
        report = execute(source, compiler, namespace, most)
    except BaseException:
        # Only for a program whose error cannot be described: a metaclass raises, or no memory is left.
        report = {"status": "error", "error": "the program failed in a way that could not be described"}
    try:
        sys.stdout.flush()
    except BaseException:
        # The program may have closed or replaced it; there is nothing left to flush then.
        pass
    return report


def prepare(job: Mapping[str, Any], source: bytes) -> tuple[Compiler, dict[str, Any]]:
    """The compiler for the program's level, and the names the program starts with. All our imports happen here."""
    for name in [*NATIVE, *(module for word, module in NATIVE_BY_WORD.items() if word in source)]:
        try:
            __import__(name)
        except ImportError:
            # This Python was built without it.
            continue
    level, inputs = job["level"], job["inputs"]
    if level in ("strict", "readonly"):
        from defserve.guard.code.restricted import compile_restricted, make_restricted_globals

        names = make_restricted_globals(level, job["allow"], trust=job["trust"], inputs=inputs)
        # What the standard library makes for a class of the program has the names of its module: not ours, which
        # import. It uses these three built-ins.
        program = types.ModuleType("__main__")
        program.__dict__["__builtins__"] = {
            **names["__builtins__"],
            "type": type,
            "super": super,
            "NotImplemented": NotImplemented,
        }
        sys.modules["__main__"] = program
        return compile_restricted, names
    # A module of its own under the usual name, so that dataclasses and type hints find their names.
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    program.__dict__.update(inputs)
    return (lambda tree: compile(tree, SOURCE, "exec", dont_inherit=True)), program.__dict__


def execute(source: bytes, compiler: Compiler, namespace: dict[str, Any], most: int) -> ChildReport:
    """Run the program. Its result is its variable `result` or, without one, its last expression."""
    reserve: list[bytes] = []
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore
    try:
        reserve.append(bytes(RESERVE))
        # Text, not bytes: a PEP 263 cookie must not decode the program into another one than was judged.
        text = source.decode("utf-8").removeprefix("\ufeff")
        tree = ast.parse(text, SOURCE)
        last = keep_last_expression(tree, text)
        exec(compiler(tree), namespace)
    except SystemExit as leave:
        if leave.code not in (None, 0):
            return {"status": "error", "error": describe_error(leave)}
        last = ""
    except MemoryError:
        reserve.clear()
        return {"status": "memory"}
    except BaseException as error:
        return {"status": "error", "error": describe_error(error)}
    value = namespace["result"] if "result" in namespace else namespace.get(last)
    reserve.clear()
    return encode(value, most)


def keep_last_expression(tree: ast.Module, text: str) -> str:
    """If the program ends in an expression, have it assigned to a name the program does not use; return that name."""
    name = "last_expression"
    while name in text:
        name += "_"
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.copy_location(ast.Name(name, ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
        ast.fix_missing_locations(tree)
    return name


def encode(value: Any, most: int) -> ChildReport:
    """The value as JSON of at most that many bytes, sets as arrays. Any other value is sent as its `repr`."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=list_set)
        # `json` accepts a lone surrogate, nothing else does.
        if len(text.encode("utf-8")) > most:
            return {"status": "output"}
        return {"status": "ok", "value": json.loads(text)}
    except MemoryError:
        return {"status": "memory"}
    except BaseException:
        try:
            return {"status": "ok", "value": repr(value)[:MAX_REPR], "is_repr": True}
        except BaseException as error:
            return {"status": "error", "error": f"the value has no text: {describe_error(error)}"}


def list_set(value: Any) -> list[Any]:
    """The members of a set, in order if they have one. Raises TypeError for what isn't a set."""
    if not isinstance(value, (set, frozenset)):
        raise TypeError
    members: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        return sorted(members)
    except TypeError:
        return members


def describe_error(error: BaseException) -> str:
    """The exception, and the lines of the program that it came through. Other frames are left out."""
    frames: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == SOURCE:
            frames.append(f"  line {trace.tb_lineno}" + ("" if code.co_name == "<module>" else f", in {code.co_name}"))
        trace = trace.tb_next
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:
        message = "its message could not be read"
    last = f"{type(error).__name__}: {message}" if message else type(error).__name__
    head = ["Traceback (most recent call last):"] if frames else []
    return "\n".join([*head, *frames[-MAX_FRAMES:], last])


def write(descriptor: int, report: ChildReport) -> None:
    """Write a report as a line of its own, whatever was written to the descriptor before."""
    try:
        data = json.dumps(report, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
    except MemoryError:
        data = b'{"status": "memory"}'
    view = memoryview(b"\n" + data)
    while view:
        view = view[os.write(descriptor, view) :]


# -- Confines this process, in this order: privileges, files, limits, system calls. It cannot be undone.


ZONES = "/usr/share/zoneinfo"
MAX_OPEN_FILES, MAX_THREADS = 64, 256


def confine(layers: Layers, limits: Mapping[str, Any], library: list[str]) -> None:
    """Confine this process by these layers. Raises OSError if one of them fails."""
    if sys.platform != "linux":
        set_limits(limits, processes=0)
        return
    from defserve.sandbox import confinement

    if confinement.get_processor_name():
        confinement.prctl(confinement.SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
        confinement.drop_privileges()
    if layers.landlock:
        confinement.restrict_files(layers.landlock, [*library, ZONES])
    # After the steps that need memory, and before the filter, which forbids setting limits.
    set_limits(limits, processes=MAX_THREADS if layers.seccomp else 0)
    if layers.seccomp:
        confinement.install_syscall_filter(os.getpid())


def set_limits(limits: Mapping[str, Any], *, processes: int) -> None:
    """Set the kernel's limits for this process. Without a filter of system calls, it may not even start threads."""
    import resource

    cpu = math.ceil(limits["cpu_seconds"] or limits["seconds"])
    table = {
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_AS": (limits["memory_bytes"], limits["memory_bytes"]),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_NOFILE": (MAX_OPEN_FILES, MAX_OPEN_FILES),
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_NPROC": (processes, processes),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
    }
    for name, (soft, hard) in table.items():
        if (number := getattr(resource, name, None)) is not None:
            ceiling = resource.getrlimit(number)[1]
            if ceiling != resource.RLIM_INFINITY:
                soft, hard = min(soft, ceiling), min(hard, ceiling)
            resource.setrlimit(number, (soft, hard))
