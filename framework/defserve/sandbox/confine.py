"""Confines this process, in this order: privileges, files, limits, system calls. It cannot be undone."""

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
    """Confine this process by these layers. Raises OSError if one of them fails."""
    if sys.platform != "linux":
        limit(limits, processes=0)
        return
    from defserve.sandbox import kernel, landlock, seccomp

    if kernel.machine():
        kernel.prctl(kernel.DEATH_SIGNAL, int(signal.SIGKILL))
        kernel.give_up_privileges()
    if layers.landlock:
        landlock.restrict(layers.landlock, [*library, ZONES])
    # After the steps that need memory, and before the filter, which forbids setting limits.
    limit(limits, processes=THREADS if layers.seccomp else 0)
    if layers.seccomp:
        seccomp.install(os.getpid())


def limit(limits: Mapping[str, Any], *, processes: int) -> None:
    """Set the kernel's limits for this process. Without a filter of system calls, it may not even start threads."""
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
