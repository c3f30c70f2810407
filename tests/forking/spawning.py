"""Servers as processes of their own that start at once: forked from one that has imported the framework already.

What `ProcessLink` starts is a real process with real pipes; it is `launcher.py`, which hands its pipes to `forker.py`,
whose child runs the script. That an interpreter can be started for a script is for `tests/serve` to prove.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from defserve.client import ProcessLink
from tests.forking.program import FLAGS

HERE = Path(__file__).parent
# As it is before `quick_python` changes it.
START = subprocess.Popen


async def spawn(script: Path, args: Sequence[str] = (), *, env: Mapping[str, str] | None = None) -> ProcessLink:
    """A link to `python script args…`."""
    return await ProcessLink.spawn(sys.executable, quick_arguments(script, args), env=env)


def quick_arguments(script: Path, args: Sequence[str] = ()) -> list[str]:
    """What to give Python to run the script, for those who start processes themselves."""
    quick = ["-I", "-S", str(HERE / "launcher.py"), forker()] if sys.platform == "linux" else []
    return [*quick, str(script), *args]


def quick_python(patch: pytest.MonkeyPatch) -> None:
    """Fork each Python that a `ProcessLink` or `subprocess` starts. Only for what is not about the start itself.

    Of the descriptors such a process gets the first three; its options are FLAGS, as others mean another interpreter.
    """
    start = ProcessLink.spawn

    async def spawn(command: str, args: Sequence[str] = (), **options: Any) -> ProcessLink:
        command, *args = _quick([command, *args])
        return await start(command, args, **options)

    class Popen(subprocess.Popen[Any]):
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            super().__init__(_quick(args) if isinstance(args, (list, tuple)) else args, *more, **options)

    patch.setattr(ProcessLink, "spawn", spawn)
    patch.setattr(subprocess, "Popen", Popen)


def _quick(command: Sequence[Any]) -> list[Any]:
    program, *args = command
    what = next((word for word in args if word not in FLAGS), "-")
    is_quick = program == sys.executable and (what in ("-m", "-c") or not what.startswith("-"))
    return [program, *(quick_arguments(HERE / "program.py", args) if is_quick else args)]


@cache
def forker() -> str:
    """Where the forker listens; it runs until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="forker")
    address = f"{folder.name}/s"
    process = START(
        [sys.executable, "-m", "tests.forking.forker", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=HERE.parents[1],
    )

    @atexit.register
    def end() -> None:
        process.communicate()
        folder.cleanup()

    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return address
