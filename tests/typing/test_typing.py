"""Decorators keep the type of what they decorate, as a strict type checker sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def complaints(*paths: Path) -> list[str]:
    """What pyright says about these files, with the project's settings and the interpreter of this run."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, paths)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    report: dict[str, Any] = json.loads(shown.stdout)
    assert report["summary"]["filesAnalyzed"] == len(paths)
    return [
        f"{Path(said['file']).name}:{said['range']['start']['line'] + 1}: {said['message']}"
        for said in report["generalDiagnostics"]
    ]


@pytest.mark.e2e
def test_states_decorators_and_verbs_without_await_keep_the_types_of_what_they_are_made_from() -> None:
    assert complaints(HERE / "states.py", HERE / "decorators.py", HERE / "blocking_verbs.py") == []
