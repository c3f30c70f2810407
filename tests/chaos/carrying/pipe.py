"""Run by the rows as a process of its own: a server behind pipes that harm what they carry.

`python -m tests.chaos.carrying.pipe SEED UP DOWN LOG COMMAND…`. UP and DOWN are names of roads, or `-`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.chaos.carrying.mangling import BY_NAME, FOR_EVER, End, Mangle, clear

READ = 65536


def main(seed: str, up: str, down: str, log: str, *command: str) -> int:
    random = Random(seed)
    with Path(log).open("ab") as file:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
    assert child.stdin is not None and child.stdout is not None
    to_child, from_child = child.stdin.fileno(), child.stdout.fileno()

    def leave(how: End) -> None:
        """Called by either way when it ends."""
        if how is End.RESET:
            child.kill()
        if how is not End.HALF:
            os._exit(1)

    def close_input() -> None:
        with suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]

    def close_output() -> None:
        os.close(1)

    ways = [
        threading.Thread(target=carry, args=(0, to_child, _mangle(up, random), close_input, leave), daemon=True),
        threading.Thread(target=carry, args=(from_child, 1, _mangle(down, random), close_output, leave), daemon=True),
    ]
    for way in ways:
        way.start()
    ways[1].join()
    return child.wait()


def _mangle(name: str, random: Random) -> Mangle:
    return clear(random) if name == "-" else BY_NAME[name].make(random)


def carry(source: int, target: int, mangle: Mangle, close: Callable[[], None], leave: Callable[[End], None]) -> None:
    """One way, until it ends."""
    how = End.HALF
    with suppress(OSError):
        while how is End.HALF and (data := os.read(source, READ)):
            for step in mangle(data):
                if isinstance(step, End):
                    how = step
                    break
                if isinstance(step, float):
                    _wait(step, source)
                else:
                    _write(target, step)
            else:
                continue
            break
    leave(how)
    close()


def _wait(seconds: float, source: int) -> None:
    if seconds < FOR_EVER:
        time.sleep(seconds)
        return
    # Nothing passes any more; but where the other side hangs up, it is heard.
    while os.read(source, READ):
        pass


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
