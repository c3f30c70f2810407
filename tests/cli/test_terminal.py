"""Commands at a real terminal, as a person meets them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pty")

from tests.cli.goldens import FOLDER
from tests.cli.terminals import at_terminal

SHELF = str(FOLDER / "shelf.py")
COLOUR = re.compile(r"\x1b\[[\d;]*m")

pytestmark = pytest.mark.slow


def test_a_terminal_has_colours_and_a_pipe_has_none(tmp_path: Path):
    seen = at_terminal("list", SHELF, cwd=tmp_path)
    assert seen.code == 0 and "\x1b[1;36mfind_books\x1b[0m" in seen.text
    piped = subprocess.run(
        [sys.executable, "-m", "defserve", "list", SHELF], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in piped.stdout and "find_books(" in piped.stdout


def test_a_question_is_answered_by_its_number(tmp_path: Path):
    seen = at_terminal("call", SHELF, "lend", "title=Emma", typed=[("(1-2):", "2\n")], cwd=tmp_path)
    text = COLOUR.sub("", seen.text)
    assert seen.code == 0
    assert "To whom?\n    1. Ann from next door\n    2. Bob, who is late\n" in text and text.endswith("bob\n")


@pytest.mark.parametrize(
    ("tool", "asked", "said"),
    [
        ("remove", "[y/n]", "remove was not run\n"),
        ("ask", "(string):", "stopped: ask did not finish\n"),
        ("confirm", "[y/n]", "stopped: confirm did not finish\n"),
    ],
)
def test_ctrl_c_at_a_question_ends_the_command_at_once(tmp_path: Path, tool: str, asked: str, said: str):
    (tmp_path / "asking.py").write_text(
        "from defserve import Context, Server, dangerous\nserver = Server('asking')\n"
        "@server.tool\n@dangerous\ndef remove() -> str:\n    return 'removed'\n"
        "@server.tool\nasync def ask(ctx: Context) -> str:\n    return await ctx.ask('Who?', str)\n"
        "@server.tool\nasync def confirm(ctx: Context) -> bool:\n    return await ctx.confirm('Sure?')\n"
    )
    seen = at_terminal("call", "asking.py", tool, typed=[(asked, "\x03")], cwd=tmp_path)
    assert seen.code == 130
    assert said in COLOUR.sub("", seen.text) and "Traceback" not in seen.text


def test_the_terminals_width_is_kept(tmp_path: Path):
    text = COLOUR.sub("", at_terminal("inspect", SHELF, width=50, cwd=tmp_path).text)
    assert max(map(len, text.splitlines())) <= 50


def test_nothing_of_rich_is_imported_for_a_pipe():
    code = (
        "import sys\nfrom defserve.cli import main\n"
        f"main(['list', {SHELF!r}]); main(['no-such'])\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'rich'])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.endswith("[]\n")
