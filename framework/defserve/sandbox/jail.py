"""A Python process of its own, confined by the kernel, that runs one program and ends. Nothing outlives a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from defserve.errors import Refused
from defserve.guard.verdict import Violation
from defserve.sandbox.job import RunStop, SandboxJob
from defserve.sandbox.layers import Layers
from defserve.sandbox.outcome import EXPLANATION, Outcome, RunStatus
from defserve.sandbox.pipes import ChildOutput, converse
from defserve.wire.jsonvalue import is_object

PACKAGE = Path(__file__).parents[2]
# Imported rather than run as a file, so that its bytecode is cached.
CHILD = "import sys; sys.path.append(sys.argv[1]); from defserve.sandbox.child import main; main()"

REPORTED: dict[str, RunStatus] = {"ok": "ok", "error": "error", "memory": "memory", "output": "output"}


def execute(job: SandboxJob, layers: Layers, stop: RunStop) -> Outcome:
    """Run a judged job and wait for its end. Raises Refused if the process could not be confined; nothing ran then."""
    started = time.monotonic()
    result, write = os.pipe()
    try:
        try:
            process = _start(job, write)
        finally:
            os.close(write)
        try:
            stop.arm(process.kill)
            output = converse(process, result, _job_message(job, layers), job.limits, started + job.limits.seconds)
        finally:
            stop.disarm()
            _end(process)
    finally:
        os.close(result)
    return _outcome(output, process.returncode, layers).since(started)


def _start(job: SandboxJob, write: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise Refused("the code was not run: the Python executable is not known", data={"fix": "run it from Python"})
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-W", "ignore", "-c", CHILD, str(PACKAGE), str(write), job.digest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env={},
        cwd="/",
        pass_fds=(write,),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and, where fork was possible at all, its whole group; then reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It has ended and is only waiting to be reaped.
        pass
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _job_message(job: SandboxJob, layers: Layers) -> bytes:
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


def _outcome(output: ChildOutput, code: int, layers: Layers) -> Outcome:
    if output.broke is not None:
        return _finished(output, layers, output.broke)
    if not output.report:
        return _finished(output, layers, *_silent_end(code))
    report = _report(output.report)
    if report["status"] == "unconfined":
        reason = _without_paths(str(report.get("error")))
        fix = "use a kernel with Landlock and seccomp; restricted code also needs RestrictedPython"
        raise Refused("the code was not run: its process could not be confined", data={"reason": reason, "fix": fix})
    if report["status"] == "mismatch":
        return Outcome("rejected", violations=(Violation("hash", "The code is not the code that was judged"),))
    finished = _finished(output, layers, REPORTED.get(report["status"], "error"), report.get("error"))
    return replace(finished, value=report.get("value"), is_repr=report.get("is_repr") is True) if finished else finished


def _finished(output: ChildOutput, layers: Layers, status: RunStatus, error: object = None) -> Outcome:
    text = EXPLANATION.get(status) if error is None else _without_paths(str(error))
    stdout = output.stdout.decode("utf-8", "replace")
    return Outcome(status, stdout=stdout, error=text, engine="jail", layers=layers.names)


def _silent_end(code: int) -> tuple[RunStatus, str | None]:
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


def _report(data: bytearray) -> dict[str, Any]:
    """The child's report. The program may have written it, so it is only read as data."""
    try:
        report = from_json(bytes(data), allow_inf_nan=False)
    except ValueError:
        report = None
    if is_object(report) and isinstance(report.get("status"), str):
        return report
    return {"status": "error", "error": "the program's value is nested too deeply or is not JSON"}


def _without_paths(text: str) -> str:
    for root in sorted({str(PACKAGE), sys.prefix, sys.base_prefix, os.path.expanduser("~")}, key=len)[::-1]:
        if len(root) > 1:
            text = text.replace(root, "<host>")
    return text
