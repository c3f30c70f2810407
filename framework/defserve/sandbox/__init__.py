"""Runs judged code in a process of its own: `run(source, level=…)` gives an Outcome.

The code that runs is, byte for byte, the code that was judged. It never runs in this process. Without a jail it runs
only if the caller accepts that.

May import: `guard.code`, `guard.verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy

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
