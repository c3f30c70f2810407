"""Where a server's time goes: the same script under cProfile, driven by the same traffic."""

from __future__ import annotations

import pstats
import tempfile
from pathlib import Path

from .contenders import CONTENDERS
from .measure import TOOLS
from .processes import Launch, ServerProcess
from .traffic import Request, drive

SECONDS = 3.0
LINES = 40


def profile(contender_name: str, tool: str, window: int, launch: Launch) -> int:
    """Drive `tool` for a few seconds and print the functions that took most. Other threads are not seen."""
    contender = next(each for each in CONTENDERS if each.name == contender_name)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        output = Path(folder) / "profile"
        with ServerProcess(contender, "calls", launch, through=("-m", "cProfile", "-o", str(output))) as server:
            server.initialize()
            timing = drive(server, Request.call(tool, TOOLS[tool].arguments), window=window, seconds=SECONDS)
            server.end_input()
        print(f"{len(timing.latencies)} calls of {tool} by {contender_name}, window {window}, under cProfile\n")
        pstats.Stats(str(output)).strip_dirs().sort_stats("tottime").print_stats(LINES)
    return 0
