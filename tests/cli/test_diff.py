"""`defserve diff`: two servers in, what breaks clients out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import Run

pytestmark = pytest.mark.usefixtures("forked")

OLD = '''
from defserve import Server
from parts import NAME

server = Server(NAME, "1")


@server.tool
def count_orders(state: str = "open") -> int:
    """How many orders there are."""
    return 0
'''
NEW = OLD.replace('state: str = "open"', "state: str, limit: int = 3")


def write(folder: Path) -> None:
    """Two versions of a server, whose modules have the same names."""
    for name, code in (("old", OLD), ("new", NEW)):
        (folder / name).mkdir()
        (folder / name / "shop.py").write_text(code)
        (folder / name / "parts.py").write_text(f"NAME = {name!r}\n")


def test_two_versions_of_the_same_files_do_not_mix(defserve: Run, folder: Path):
    write(folder)
    code, out, _ = defserve("diff", "old/shop.py", "new/shop.py")
    assert code == 0
    assert out.startswith("old 1 → new 1\ntools 1; about ")
    assert "  breaks  state is required now  Calls without it were right, and are refused now.\n" in out
    assert "  fine    limit is new, and optional\n" in out
    assert out.endswith("\n1 change breaks clients, 3 compatible\n")


def test_a_saved_listing_stands_for_a_server(defserve: Run, folder: Path):
    write(folder)
    (folder / "old.json").write_text(defserve("inspect", "new/shop.py", "--json").out)
    assert defserve("diff", "old.json", "old.json").out.endswith("\nnothing changed\n")
    found = json.loads(defserve("diff", "old.json", "new/shop.py", "--json").out)
    assert found["changes"] == [] and found["before"] == found["after"]


def test_fail_on_says_what_makes_it_fail(defserve: Run, folder: Path):
    write(folder)
    for name in ("old", "new"):
        (folder / f"{name}.json").write_text(defserve("inspect", f"{name}/shop.py", "--json").out)
    codes = {
        (old, level): defserve("diff", f"{old}.json", "new.json", "--fail-on", level).code
        for old in ("old", "new")
        for level in ("breaking", "risky", "any")
    }
    assert {old for (old, _), code in codes.items() if code == 1} == {"old"}
    assert all(code == (old == "old") for (old, _), code in codes.items())


def test_the_new_one_may_be_a_command_or_the_server_of_the_project(defserve: Run, folder: Path):
    write(folder)
    (folder / "old.json").write_text(defserve("inspect", "old/shop.py", "--json").out)
    out = defserve("diff", "old.json", "--", sys.executable, "-m", "defserve", "run", "new/shop.py").out
    assert "state is required now" in out
    code, _, err = defserve("diff", "old.json")
    assert code == 1 and "only the old server is given" in err


def test_markdown_holds_what_servers_wrote_as_code(defserve: Run, folder: Path):
    tool = {"name": "a|b`@you\u202e", "inputSchema": {"type": "object"}}
    for name, tools in (("old", [tool]), ("new", [])):
        (folder / f"{name}.json").write_text(json.dumps({"tools": tools}))
    out = defserve("diff", "old.json", "new.json", "--format", "markdown").out
    assert "| **breaking** | tool `a¦b'@you\\u202e` | is gone | Clients that use it fail. |\n" in out
    assert out.startswith("### `unnamed server`\n\n**1 change breaks clients.** Tools 1 → 0; about ")


def test_every_rule_is_shown_with_its_reason(defserve: Run):
    assert "Callers without this permission are refused." in defserve("diff", "--rules").out
    assert json.loads(defserve("diff", "--rules", "--json").out)["removed"]["level"] == "breaking"


def test_what_cannot_be_compared_says_what_to_do(defserve: Run, folder: Path):
    (folder / "bad.json").write_text("{}")
    (folder / "bad.py").write_text("1/0\n")
    for words, problem in {
        ("diff",): "no server is given",
        ("diff", "bad.json"): "only the old server is given",
        ("diff", "a.json", "b.json", "c.json"): "two servers at a time; 'c.json' is unexpected",
        ("diff", "none.json", "bad.json"): "cannot read none.json",
        ("diff", "bad.json", "bad.json"): "bad.json holds no list of tools",
        ("diff", "bad.py", "bad.json"): "division by zero",
    }.items():
        code, _, err = defserve(*words)
        assert code == 1 and problem in err and "error: " in err, words
