"""What `defserve migrate` says is copied into a shell."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Run
from tests.rows import for_each_row


@for_each_row(("name", "word"), [("a b;id.py", "'a b;id.py'"), ("$(id).py", "'$(id).py'"), ("a.py", "a.py")])
def test_the_next_step_quotes_the_name_of_the_file(name: str, word: str, defserve: Run, folder: Path) -> None:
    (folder / name).write_text('from fastmcp import FastMCP\n\nmcp = FastMCP("m")\n')
    _, out, err = defserve("migrate", name)
    assert f"defserve migrate {word} --write" in " ".join(out.split()), out + err
