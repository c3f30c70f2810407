"""Which layers this system can confine a process with. The kernel is asked once; nothing is assumed."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple


class Layers(NamedTuple):
    """The layers that a system has. `landlock` is the version in the kernel, 0 for none."""

    rlimits: bool = False
    landlock: int = 0
    seccomp: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The layers that this system has."""
        return tuple(name for name in ("rlimits", "landlock", "seccomp") if getattr(self, name))

    @property
    def missing(self) -> tuple[str, ...]:
        """The layers that this system lacks. A jail needs all three: each covers what the others cannot."""
        return tuple(name for name in ("rlimits", "landlock", "seccomp") if not getattr(self, name))


@cache
def probe() -> Layers:
    """The layers of this system."""
    rlimits = find_spec("resource") is not None
    if sys.platform != "linux":
        return Layers(rlimits=rlimits)
    from defserve.sandbox import landlock, seccomp

    return Layers(rlimits=rlimits, landlock=landlock.abi(), seccomp=seccomp.supported())
