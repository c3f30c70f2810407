"""What `defserve migrate` says is copied into a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("name", "word"), [("a b;id.py", "'a b;id.py'"), ("$(id).py", "'$(id).py'"), ("a.py", "a.py")])
def test_the_next_step_quotes_the_name_of_the_file(name: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('from fastmcp import FastMCP\n\nmcp = FastMCP("m")\n')
    done = subprocess.run(
        [sys.executable, "-P", "-m", "defserve", "migrate", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert f"defserve migrate {word} --write" in " ".join(done.stdout.split()), done.stdout + done.stderr
