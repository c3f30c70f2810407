"""Runs judged code in a process of its own: `run(source, level=…)` gives an Outcome.

The code that runs is, byte for byte, the code that was judged. It never runs in this process. Without a jail it runs
only if the caller says so.

May import: `guard.code`, `guard.verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.sandbox.layers import Layers, probe
    from defserve.sandbox.outcome import Outcome, SandboxLimits
    from defserve.sandbox.running import engines, run, run_async

# Name to module: the jailed process imports parts of this package and nothing besides.
_EXPORTS = {
    "Layers": "layers",
    "Outcome": "outcome",
    "SandboxLimits": "outcome",
    "engines": "running",
    "probe": "layers",
    "run": "running",
    "run_async": "running",
}

__all__ = ["Layers", "Outcome", "SandboxLimits", "engines", "probe", "run", "run_async"]


def __getattr__(name: str) -> Any:
    if (module := _EXPORTS.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
