"""What `defserve migrate` says is copied into a shell."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Run
from tests.rows import for_each_row


def test_a_file_of_no_server_has_nothing_left_to_do(defserve: Run, folder: Path) -> None:
    (folder / "other.py").write_text("print(1)\n")
    code, out, _ = defserve("migrate", "other.py")
    assert code == 0 and "Left to do" not in out
    assert "other.py: nothing to change: nothing of FastMCP or the official SDK is imported here" in out


def test_a_file_with_a_syntax_error_is_named_with_its_line(defserve: Run, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\ndef f(:\n")
    code, _, err = defserve("migrate", "broken.py")
    assert code == 1 and "broken.py:2: this is not valid Python" in err and "fix: correct the syntax error" in err


@for_each_row(("name", "word"), [("a b;id.py", "'a b;id.py'"), ("$(id).py", "'$(id).py'"), ("a.py", "a.py")])
def test_the_next_step_quotes_the_name_of_the_file(name: str, word: str, defserve: Run, folder: Path) -> None:
    (folder / name).write_text('from fastmcp import FastMCP\n\nmcp = FastMCP("m")\n')
    _, out, err = defserve("migrate", name)
    assert f"defserve migrate {word} --write" in " ".join(out.split()), out + err
