"""What a worker measures of its own process, in the words that Prometheus's own clients use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from defserve.observing.merging import labelled
from defserve.observing.metrics import head, labels
from defserve.protocols.mgp.lifecycle.health import memory_bytes

CUT: Final = "# the rest was left out: it is too long\n"


def worker_figures(number: int, measured: str, most: int) -> str:
    """The metrics of a worker, each with its number. Lines past `most` characters are left out."""
    text = labelled("".join(f"{line}\n" for line in _of_process()) + measured, labels(worker=str(number))[1:-1])
    return text if len(text) <= most else text[: text.rfind("\n", 0, most) + 1] + CUT


def _of_process() -> Iterator[str]:
    yield from head("defserve_worker_info", "gauge", "The process of a worker.")
    yield f"defserve_worker_info{labels(pid=str(os.getpid()))} 1"
    yield from head("process_cpu_seconds_total", "counter", "Processor time of the process.")
    yield f"process_cpu_seconds_total {time.process_time():.3f}"
    if (memory := memory_bytes()) is not None:
        yield from head("process_resident_memory_bytes", "gauge", "Memory of the process.")
        yield f"process_resident_memory_bytes {memory}"
