"""How a process gives up its freedom, in this order: privileges, files, limits, system calls. There is no way back."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from defserve.sandbox.layers import Layers

ZONES = "/usr/share/zoneinfo"
OPEN_FILES, THREADS = 64, 256


def confine(layers: Layers, limits: Mapping[str, Any], library: list[str]) -> None:
    """Hold this process to these layers. Raises OSError when one of them does not take."""
    if sys.platform != "linux":
        return limit(limits, processes=0)
    from defserve.sandbox import kernel, landlock, seccomp

    if kernel.machine():
        kernel.prctl(kernel.DEATH_SIGNAL, int(signal.SIGKILL))
        kernel.give_up_privileges()
    if layers.landlock:
        landlock.restrict(layers.landlock, [*library, ZONES])
    # Late, since what came before needs memory; but the filter lets no limit be set.
    limit(limits, processes=THREADS if layers.seccomp else 0)
    if layers.seccomp:
        seccomp.install(os.getpid())


def limit(limits: Mapping[str, Any], *, processes: int) -> None:
    """The kernel's limits for this process. Without a filter of system calls not even threads are left to it."""
    import resource

    cpu = math.ceil(limits["cpu_seconds"] or limits["seconds"])
    table = {
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_AS": (limits["memory_bytes"], limits["memory_bytes"]),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_NOFILE": (OPEN_FILES, OPEN_FILES),
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
