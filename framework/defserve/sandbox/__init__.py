"""Runs judged code apart from the host: `run(source, level=…) -> Outcome`. Out of process, always."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.exports import lazy

if TYPE_CHECKING:
    from defserve.sandbox.layers import Layers, probe
    from defserve.sandbox.outcome import Outcome, SandboxLimits
    from defserve.sandbox.running import engines, run, run_async
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.sandbox.layers": "Layers probe",
            "defserve.sandbox.outcome": "Outcome SandboxLimits",
            "defserve.sandbox.running": "engines run run_async",
        },
    )

__all__ = [
    "Layers",
    "Outcome",
    "SandboxLimits",
    "engines",
    "probe",
    "run",
    "run_async",
]
