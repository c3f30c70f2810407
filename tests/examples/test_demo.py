"""What `make demo` shows is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked")

DEMO = Path(__file__).parents[2] / "examples" / "_demo.py"


def test_the_demo_adds_and_explains_a_bad_argument_in_both_eras() -> None:
    shown = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=50)
    assert (shown.returncode, shown.stderr) == (0, "")
    for version in ("2025-11-25", "2026-07-28"):
        told = shown.stdout.split(f"A client of {version}")[1].split("A client of")[0]
        assert f"calculator, speaking {version}" in told
        assert "add(a: integer, b: integer)   Add two numbers." in told
        assert "add(a=2, b=3)  →  5" in told
        assert 'b: expected integer, got "three"' in told
