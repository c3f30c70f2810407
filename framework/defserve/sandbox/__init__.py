"""Runs judged code in a process of its own: `run(source, level=…)` gives an Outcome.

The code that runs is, byte for byte, the code that was judged. It never runs in this process. Without a jail it runs
only if the caller accepts that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.sandbox.confinement import Layers, probe
    from defserve.sandbox.job import Outcome, SandboxLimits
    from defserve.sandbox.running import engines, run, run_async
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.sandbox.confinement": "Layers probe",
            "defserve.sandbox.job": "Outcome SandboxLimits",
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
