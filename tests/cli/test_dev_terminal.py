"""`defserve dev` at a real terminal: what a person sees, and what keys do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pty")

from tests.cli.terminals import at_terminal
from tests.listening import find_free_port
from tests.rows import for_each_row

COLOUR = re.compile(r"\x1b\[[\d;]*m")
SOURCE = """from defserve import Server

server = Server("calc", version="1.2.0")


@server.tool
def add(a: int, b: int) -> int:
    return a + b
"""
MUL = "\n\n@server.tool\ndef mul(a: int, b: int) -> int:\n    return a * b\n"

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "calc.py"
    path.write_text(SOURCE)
    return path


def write(file: Path, text: str) -> str:
    """Edit in one step, and type nothing."""
    file.with_name(".new").write_text(text)
    file.with_name(".new").replace(file)
    return ""


def test_each_change_is_one_line_and_a_build_error_names_its_line(file: Path):
    seen = at_terminal(
        "dev",
        "calc.py",
        typed=[
            ("h help", lambda: write(file, SOURCE + MUL)),
            ("+mul", lambda: write(file, SOURCE + "\ndef broken(:\n")),
            ("the old version is still serving", lambda: write(file, SOURCE.replace("a + b", "b + a"))),
            ("−mul", "r"),
            ("restarted", "q"),
        ],
        env={"NO_COLOR": "1"},
        cwd=file.parent,
    )
    text = COLOUR.sub("", seen.text)
    assert seen.code == 0
    assert re.search(
        r"\n  calc 1\.2\.0  ready in [\d.]+ m?s\n\n  tools      1, about \d+ tokens in every request\n", text
    )
    assert re.search(r"  address    http://127\.0\.0\.1:\d+/mcp\n  inspector  http://127\.0\.0\.1:\d+/\?token=", text)
    assert re.search(r"  calc\.py → \+mul, [\d.]+ m?s\n", text)
    assert re.search(r"  calc\.py → ~add −mul, [\d.]+ m?s\n", text)
    assert "  calc.py:10  SyntaxError: invalid syntax\n" in text and "def broken(:\n" in text
    assert "Traceback" not in text


def test_the_last_call_is_repeated_and_help_and_install_are_shown(file: Path):
    on = f"http://127.0.0.1:{find_free_port()}/mcp"

    def call_from_elsewhere() -> str:
        argv = [sys.executable, "-m", "defserve", "call", on, "add", "a=20", "b=22"]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "42\n"
        return "c"

    seen = at_terminal(
        "dev",
        "calc.py",
        "--on",
        on,
        typed=[
            ("h help", "c"),
            ("no tool was called yet", "i"),
            ("defserve install calc.py --client", "h"),
            ("show this help", call_from_elsewhere),
            ("\n42\r\n", "q"),
        ],
        env={"NO_COLOR": "1"},
        cwd=file.parent,
    )
    assert seen.code == 0 and "  add a=20 b=22\n42\n" in COLOUR.sub("", seen.text)


@for_each_row(("keys", "code"), [("\x03", 130), ("\x04", 0)])
def test_a_dev_server_that_is_told_to_end_ends_well(tmp_path: Path, keys: str, code: int):
    (tmp_path / "calc.py").write_text(SOURCE)
    seen = at_terminal("dev", "calc.py", typed=[("h help", keys)], env={"NO_COLOR": "1"}, cwd=tmp_path)
    assert seen.code == code and "Traceback" not in seen.text and "ended by itself" not in seen.text


def test_a_server_for_a_client_writes_nothing_to_stdout_but_answers(file: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", "defserve", "dev", "calc.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=file.parent,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("defserve dev: calc 1.2.0: 1 tool, about ")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out, err) == (0, "", "")
