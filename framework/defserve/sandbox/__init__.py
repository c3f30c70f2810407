"""Runs judged code apart from the host: `run(source, level=…) -> Outcome`. Out of process, always."""

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
