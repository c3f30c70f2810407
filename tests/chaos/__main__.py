"""The command `make chaos`: bad roads, full disks, clocks that jump, paused processes, no descriptors, no memory.

Every row of the table is a fault and what is expected under it. Nothing hangs, nothing acknowledged is lost, and the
message says what happened. It exits with 1 if a row was not held. The seed is printed; `--seed` repeats a run.
"""

from __future__ import annotations

import logging
import sys

from tests.attack.__main__ import command
from tests.chaos.families import faults

JOBS = 8
"""Most rows wait most of the time."""


def main(arguments: list[str] | None = None) -> int:
    logging.disable()  # what clients of others log about broken messages
    return command("chaos", __doc__ or "", faults(), arguments, JOBS)


if __name__ == "__main__":
    sys.exit(main())
