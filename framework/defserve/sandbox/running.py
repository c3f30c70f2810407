"""Judges a program, then runs it in a process of its own. Code that is refused or cannot be contained does not run.

| level | compiled | engine |
|---|---|---|
| `standard`, `unrestricted` | as it is | jail |
| `strict`, `readonly` | by RestrictedPython | Monty if installed; the jail without Monty, and if Monty fails |

A jail needs every layer of `Layers`; if one is missing the run is `Refused`, unless the caller accepts the risk.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from defserve.core.json_values import is_object
from defserve.errors import Refused
from defserve.guard.code import judge
from defserve.guard.code.allowed_names import CodeLevel
from defserve.guard.verdict import Violation
from defserve.sandbox import confinement, monty
from defserve.sandbox.confinement import Layers
from defserve.sandbox.job import (
    MAX_REPR_LENGTH,
    STATUS_EXPLANATIONS,
    NameList,
    Outcome,
    RunStatus,
    RunStopper,
    SandboxJob,
    SandboxLimits,
    explain_program_error,
    make_sandbox_job,
)

RESTRICTED = ("strict", "readonly")


def run(
    source: str | bytes,
    *,
    level: CodeLevel = "standard",
    inputs: Mapping[str, Any] | None = None,
    limits: SandboxLimits | None = None,
    allow: NameList | None = None,
    block: NameList | None = None,
    trust: NameList = (),
    unsafe_without_jail: bool = False,
) -> Outcome:
    """Judge a program and run it in a process of its own, waiting for its end. Safe in any thread.

    `inputs` become its first variables, as JSON copies; `allow`, `block` and `trust` are the judge's.
    `unsafe_without_jail` runs it with the layers this system has, at least its limits: for development, never for
    strangers' code.

    Raises Refused if this system cannot contain the program, UsageError for inputs that are not JSON.
    """
    job = replace(make_sandbox_job(source, level, inputs, limits), allow=allow, block=block, trust=trust)
    return _run(job, RunStopper(), unsafe_without_jail)


async def run_async(
    source: str | bytes,
    *,
    level: CodeLevel = "standard",
    inputs: Mapping[str, Any] | None = None,
    limits: SandboxLimits | None = None,
    allow: NameList | None = None,
    block: NameList | None = None,
    trust: NameList = (),
    unsafe_without_jail: bool = False,
) -> Outcome:
    """`run`, leaving the event loop free. If cancelled, it returns once the program's process is gone."""
    import anyio
    from anyio.to_thread import run_sync

    job = replace(make_sandbox_job(source, level, inputs, limits), allow=allow, block=block, trust=trust)
    stop = RunStopper()
    try:
        return await run_sync(_run, job, stop, unsafe_without_jail, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        stop.stop_run()
        with anyio.CancelScope(shield=True):
            await run_sync(stop.done.wait)
        raise


def engines() -> tuple[str, ...]:
    """What can run code here, most restricted first: `monty` for strict and readonly code, `jail` for all."""
    return tuple(
        name for name, there in (("monty", monty.is_installed()), ("jail", not confinement.probe().missing)) if there
    )


def _run(job: SandboxJob, stop: RunStopper, unsafe: bool) -> Outcome:
    if not stop.try_begin_run():
        return Outcome("killed", error="the run was cancelled before it began")
    try:
        verdict = judge(job.source, level=job.level, allow=job.allow, block=job.block, trust=job.trust)
        if not verdict:
            text = "\n".join(map(str, verdict.violations))
            return Outcome("rejected", error=text, violations=verdict.violations, hints=verdict.hints)
        return _run_judged(job, stop, unsafe)
    finally:
        stop.done.set()


def _run_judged(job: SandboxJob, stop: RunStopper, unsafe: bool) -> Outcome:
    available = confinement.probe()
    # Monty has its own modules, so it cannot provide the modules that an author trusts.
    if job.level in RESTRICTED and not job.trust and monty.is_installed():
        outcome = monty.run_in_monty(job, stop)
        return (
            outcome if outcome.status != "error" or available.missing else _retry_in_jail(job, available, stop, outcome)
        )
    if available.missing and not (unsafe and available.rlimits):
        raise _containment_error(job.level, available.missing)
    return run_in_jail(job, available, stop)


def _retry_in_jail(job: SandboxJob, available: Layers, stop: RunStopper, first: Outcome) -> Outcome:
    """Run a program that failed in Monty again in the jail, in the time that is left.

    Nothing it did in Monty has left the worker, so it may run again.
    """
    spent = first.duration_ms / 1_000
    if stop.stopped or spent >= job.limits.seconds:
        return first
    second = run_in_jail(replace(job, limits=replace(job.limits, seconds=job.limits.seconds - spent)), available, stop)
    return first if second.status == "timeout" else replace(second, duration_ms=first.duration_ms + second.duration_ms)


def _containment_error(level: str, missing: tuple[str, ...]) -> Refused:
    fixes = ["run on Linux 5.13 or newer with Landlock and seccomp enabled"]
    if level in RESTRICTED:
        fixes.insert(0, f"pip install pydantic-monty=={monty.MONTY_VERSION}")
    fix = ", or ".join(fixes)
    return Refused(
        f"{level} code cannot be run here: nothing can contain it (missing: {', '.join(missing)}); {fix}",
        data={"reason": "no_containment", "missing": list(missing), "fix": fix},
    )


# -- A Python process of its own, confined by the kernel, that runs one program and ends. Nothing outlives a run.


PACKAGE = Path(__file__).parents[2]

# Imported rather than run as a file, so that its bytecode is cached.
CHILD = "import sys; sys.path.append(sys.argv[1]); from defserve.sandbox.child import main; main()"

# What a program may say of itself. Everything else is known without it.
REPORTED: dict[str, RunStatus] = {"ok": "ok", "error": "error", "memory": "memory", "output": "output"}
MAX_ERROR = 16_000


def run_in_jail(job: SandboxJob, layers: Layers, stop: RunStopper) -> Outcome:
    """Run a judged job and wait for its end. Raises Refused if the process could not be confined; nothing ran then."""
    started = time.monotonic()
    with ExitStack() as ours, ExitStack() as its:
        try:
            startup, result = _open_pipe(ours, its), _open_pipe(ours, its)
            process = _start(job, startup.write, result.write)
        except OSError as error:
            raise Refused(
                f"the code was not run: its process did not start ({error.strerror})",
                data={"fix": "see how many files and processes the server may have, and try again"},
            ) from error
        try:
            stop.set_kill_function(process.kill)
            its.close()
            message, deadline = _encode_job(job, layers), started + job.limits.seconds
            output = converse(process, startup.read, result.read, message, job.limits, deadline)
        finally:
            stop.mark_run_ended()
            _end(process)
    return _make_outcome(output, process.returncode, layers, job.limits.output_bytes).since(started)


class _Pipe(NamedTuple):
    read: int
    write: int


def _open_pipe(ours: ExitStack, its: ExitStack) -> _Pipe:
    """A pipe to us. Each stack closes its end."""
    pipe = _Pipe(*os.pipe())
    ours.callback(os.close, pipe.read)
    its.callback(os.close, pipe.write)
    return pipe


def _start(job: SandboxJob, startup: int, result: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise Refused("the code was not run: the Python executable is not known", data={"fix": "run it from Python"})
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-X",
            "utf8",
            "-W",
            "ignore",
            "-c",
            CHILD,
            str(PACKAGE),
            *map(str, (startup, result)),
            job.digest,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env={},
        cwd="/",
        pass_fds=(startup, result),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and, where fork was possible at all, its whole group; then reap it."""
    # One that has ended is only waiting to be reaped.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _encode_job(job: SandboxJob, layers: Layers) -> bytes:
    header = {
        "path": _import_path(job.level),
        "level": job.level,
        "allow": None if job.allow is None else [*job.allow],
        "trust": [*job.trust],
        "inputs": json.loads(job.inputs),
        "limits": asdict(job.limits),
        "layers": layers,
        "parent": os.getpid(),
    }
    return json.dumps(header).encode() + b"\n" + job.source


@cache
def _import_path(level: str) -> list[str]:
    """Where the child finds the compiler of restricted code. It cannot reach it once confined."""
    if level not in ("strict", "readonly"):
        return []
    import RestrictedPython

    return [str(Path(RestrictedPython.__file__).parents[1])]


def _make_outcome(output: ChildOutput, code: int, layers: Layers, most: int) -> Outcome:
    """What became of the job. The program's own report is read last, and only where nothing else decides."""
    # The first line is ours. Without a jail, a program may find a way to add to it.
    startup = _parse_report(output.startup.lstrip(b"\n").partition(b"\n")[0]) or {}
    if startup.get("status") == "unconfined":
        reason = _remove_paths(str(startup.get("error")))
        fix = "use a kernel with Landlock and seccomp; restricted code also needs RestrictedPython"
        raise Refused("the code was not run: its process could not be confined", data={"reason": reason, "fix": fix})
    if startup.get("status") == "mismatch":
        return Outcome("rejected", violations=(Violation("hash", "The code is not the code that was judged"),))
    if startup.get("status") != "confined":
        status, error = ("memory", None) if startup.get("status") == "memory" else _explain_exit(code)
        return Outcome(output.broke or status, error=STATUS_EXPLANATIONS.get(output.broke or status, error))
    ran = Outcome("ok", stdout=output.stdout.decode("utf-8", "replace"), engine="jail", layers=layers.names)
    if output.broke is not None:
        return replace(ran, status=output.broke, error=STATUS_EXPLANATIONS[output.broke])
    if code or not output.report:
        status, error = _explain_exit(code)
        return replace(ran, status=status, error=STATUS_EXPLANATIONS.get(status, error))
    # The last line is ours: the child begins a new one, whatever a program wrote before.
    line = output.report.rpartition(b"\n")[2]
    return _apply_report(ran, _parse_report(line), most if len(line) > most else None)


def _apply_report(ran: Outcome, report: dict[str, Any] | None, most: int | None) -> Outcome:
    """The outcome of a program that ended by itself, as it reports it. It may say what a program can bring about.

    `most` is how many bytes of JSON its value may have, if that is still to be checked.
    """
    if report is None or (status := REPORTED.get(str(report.get("status")))) is None:
        return replace(ran, status="error", error="the program's value is nested too deeply or is not JSON")
    if status != "ok":
        said = report.get("error")
        error = (
            STATUS_EXPLANATIONS.get(status)
            if said is None
            else explain_program_error(_remove_paths(str(said)[:MAX_ERROR]))
        )
        return replace(ran, status=status, error=error)
    value, is_repr = report.get("value"), report.get("is_repr") is True
    if is_repr:
        value = str(value)[:MAX_REPR_LENGTH]
    elif most is not None and len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")) > most:
        return replace(ran, status="output", error=STATUS_EXPLANATIONS["output"])
    return replace(ran, value=value, is_repr=is_repr)


def _explain_exit(code: int) -> tuple[RunStatus, str | None]:
    """The status and the error of a process that ended without a report."""
    if code == -signal.SIGXCPU:
        return "timeout", None
    if code < 0:
        return "killed", f"the program was ended by {_signal_name(-code)}"
    return "error", f"the program left without a result (exit code {code})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _parse_report(line: bytearray) -> dict[str, Any] | None:
    try:
        report = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return report if is_object(report) else None


def _remove_paths(text: str) -> str:
    for root in sorted({str(PACKAGE), sys.prefix, sys.base_prefix, os.path.expanduser("~")}, key=len)[::-1]:
        if len(root) > 1:
            text = text.replace(root, "<host>")
    return text


# -- Exchanges data with a process that may send anything, too much or nothing: limited in bytes and in time.


CHUNK = 64 * 1024

# Room for the report around a value, or for an error's text.
ENVELOPE = 32 * 1024


@dataclass(slots=True)
class ChildOutput:
    """What the process sent, and which limit it broke, if any.

    `startup` comes from us alone: the program has no way to write there. `report` is what the program says of itself.
    """

    stdout: bytearray = field(default_factory=bytearray)
    startup: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    broke: Literal["timeout", "output"] | None = None


def converse(
    process: subprocess.Popen[bytes],
    startup: int,
    result: int,
    message: bytes,
    limits: SandboxLimits,
    deadline: float,
) -> ChildOutput:
    """Send the process its job, and read until it has ended or reached a limit.

    A process that closed its pipes without a report can say nothing more, so the caller may kill it at once.
    """
    assert process.stdin is not None and process.stdout is not None
    output, rest = ChildOutput(), memoryview(message)
    sinks = {
        process.stdout.fileno(): (output.stdout, limits.output_bytes),
        startup: (output.startup, ENVELOPE),
        result: (output.report, limits.output_bytes + ENVELOPE),
    }
    with selectors.DefaultSelector() as selector:
        for descriptor in sinks:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while sinks and output.broke is None:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                output.broke = "timeout"
                break
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    rest = _send(process.stdin.fileno(), rest)
                    if not rest:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif not (chunk := os.read(key.fd, CHUNK)):
                    selector.unregister(key.fd)
                    del sinks[key.fd]
                elif not _append_chunk(chunk, *sinks[key.fd]):
                    output.broke = "output"
    if output.report and output.broke is None and not _has_ended(process, deadline):
        output.broke = "timeout"
    return output


def _has_ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it ends in time. Only then does its exit code tell how."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _append_chunk(chunk: bytes, sink: bytearray, most: int) -> bool:
    """Add a chunk as far as there is room. Returns whether all of it fitted."""
    sink += chunk
    fits = len(sink) <= most
    del sink[most:]
    return fits


def _send(descriptor: int, rest: memoryview) -> memoryview:
    """What is left to write; nothing if the reader has gone."""
    try:
        return rest[os.write(descriptor, rest[:CHUNK]) :]
    except BrokenPipeError:
        return rest[:0]
