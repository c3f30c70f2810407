"""Judges a program, then runs it in a process of its own. Code that is refused or cannot be contained does not run.

| level | compiled | engine |
|---|---|---|
| `standard`, `unrestricted` | as it is | jail |
| `strict`, `readonly` | by RestrictedPython | Monty if installed; the jail without Monty, and if Monty fails |

A jail needs every layer of `Layers`; if one is missing the run is `Refused`, unless the caller accepts the risk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from defserve.errors import Refused
from defserve.guard.code import judge
from defserve.guard.code.allowed_names import CodeLevel
from defserve.sandbox import confinement, jail, monty
from defserve.sandbox.confinement import Layers
from defserve.sandbox.job import NameList, Outcome, RunStopper, SandboxJob, SandboxLimits, make_sandbox_job

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
    if not stop.begin_run():
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
    return jail.run_in_jail(job, available, stop)


def _retry_in_jail(job: SandboxJob, available: Layers, stop: RunStopper, first: Outcome) -> Outcome:
    """Run a program that failed in Monty again in the jail, in the time that is left.

    Nothing it did in Monty has left the worker, so it may run again.
    """
    spent = first.duration_ms / 1_000
    if stop.stopped or spent >= job.limits.seconds:
        return first
    second = jail.run_in_jail(
        replace(job, limits=replace(job.limits, seconds=job.limits.seconds - spent)), available, stop
    )
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
