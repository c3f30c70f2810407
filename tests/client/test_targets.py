from __future__ import annotations

import sys
from pathlib import Path

import pytest

from defserve.client.targets import load_server
from defserve.errors import UsageError
from tests.loaded_modules import forget_modules_below

SERVER = """
class Server:
    def __init__(self, name): self.name = name
    def connect(self): ...
    def run(self): ...
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path  # type: ignore[misc]
    forget_modules_below(tmp_path)


def write(name: str, code: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(SERVER + code)


@pytest.mark.parametrize("target", ["calc_one:main.it", "calc_one.py:main.it", "./calc_one.py:main.it"])
def test_an_attribute_is_found_by_module_or_file(target: str):
    write("calc_one.py", "class main:\n    it = Server('a')")
    assert load_server(target).name == "a"


@pytest.mark.parametrize("name", ["server", "mcp", "app"])
def test_the_usual_names_need_not_be_said(name: str):
    write("calc_two.py", f"other = Server('other')\n{name} = Server('usual')")
    assert load_server("calc_two.py").name == "usual"


def test_the_only_server_of_a_module_needs_no_name():
    write("calc_three.py", "calculator = Server('only')")
    assert load_server("calc_three").name == "only"


def test_a_file_may_import_its_neighbours():
    write("deep/helper_of_four.py", "value = 7")
    write("deep/calc_four.py", "from helper_of_four import value\nserver = Server(value)")
    assert load_server("deep/calc_four.py").name == 7


def test_two_files_of_one_name_are_two_servers():
    write("one/calc_six.py", "server = Server('one')")
    write("two/calc_six.py", "server = Server('two')")
    names = [load_server(f"{folder}/calc_six.py").name for folder in ("one", "two", "one", "two")]
    assert names == ["one", "two", "one", "two"]
    assert load_server("two/calc_six.py") is load_server("two/calc_six.py")


def test_a_failure_inside_the_file_names_the_line():
    write("calc_seven.py", "def broken():\n    return 1 / 0\nbroken()")
    with pytest.raises(UsageError, match=r"calc_seven.py:7: running calc_seven.py failed: ZeroDivisionError"):
        load_server("calc_seven.py")
    Path("calc_eight.py").write_text("x = (")
    with pytest.raises(UsageError) as caught:
        load_server("calc_eight:server")
    problem = "importing 'calc_eight' failed: SyntaxError: '(' was never closed\n    x = ("
    assert str(caught.value) == f"calc_eight.py:1: {problem}"


@pytest.mark.parametrize("target", ["calc_round.py", "calc_round"])
@pytest.mark.parametrize("use", ["from calc_round import server", "import calc_round\ncalc_round.server.tool"])
def test_an_author_whose_files_import_each_other_is_told_so(target: str, use: str):
    Path("calc_round.py").write_text("import calc_round_tools\nfrom defserve import Server\nserver = Server('calc')\n")
    Path("calc_round_tools.py").write_text(f"{use}\n")
    with pytest.raises(UsageError, match="calc_round_tools.py:") as caught:
        load_server(target)
    assert caught.value.fix.startswith("calc_round and what it imports import each other: move what both need")


@pytest.mark.parametrize(("name", "fix"), [("Command", "did you mean 'ShellCommand'?"), ("Zebra", "")])
def test_an_author_who_imports_a_misspelt_name_is_met_with_a_suggestion(name: str, fix: str):
    Path(f"calc_{name.lower()}.py").write_text(f"from defserve.guard import {name}\n")
    with pytest.raises(UsageError, match=f"cannot import name '{name}'") as caught:
        load_server(f"calc_{name.lower()}.py")
    assert caught.value.fix == fix


def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8():
    Path("calc_latin.py").write_bytes("NAME = 'Café'\n".encode("latin-1"))
    Path("calc_wide.py").write_bytes("NAME = 1\n".encode("utf-16"))
    for target in ("calc_latin.py", "calc_wide.py"):
        with pytest.raises(UsageError, match=f"running {target} failed: SyntaxError") as caught:
            load_server(target)
        assert caught.value.fix == "save the file as UTF-8"


def test_a_program_that_still_uses_another_framework_is_told_in_which_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fastmcp", None)
    Path("calc_mixed.py").write_text("import os\nfrom fastmcp.tools import X\nimport mcp.types\n")
    with pytest.raises(UsageError) as caught:
        load_server("calc_mixed.py")
    assert str(caught.value).startswith("calc_mixed.py:2: ")
    assert "imported in lines 2, 3; `defserve migrate calc_mixed.py` says how" in caught.value.fix


def test_a_server_of_another_framework_is_named():
    Path("calc_foreign.py").write_text("from mcp.server import MCPServer\nmcp = MCPServer('calc')\n")
    with pytest.raises(UsageError) as caught:
        load_server("calc_foreign.py")
    assert str(caught.value).startswith("'calc_foreign.py' has no server of defserve: mcp is another framework's")
    assert caught.value.fix.startswith("`defserve migrate calc_foreign.py` rewrites it")


def test_a_failure_in_the_framework_names_the_line_that_led_to_it():
    Path("calc_wrong.py").write_text("from defserve.client.targets import load_server\nload_server(3)")
    with pytest.raises(UsageError, match=r"^calc_wrong.py:2: running calc_wrong.py failed: AttributeError"):
        load_server("calc_wrong.py")


def test_a_complaint_of_the_servers_own_is_passed_on():
    write("calc_nine.py", "from defserve.errors import UsageError\nraise UsageError('name clash', fix='rename')")
    with pytest.raises(UsageError, match="^name clash"):
        load_server("calc_nine.py")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("no_such_module:server", "no module 'no_such_module'"),
        ("no_such_file.py", "no file"),
        ("no_such_file.py", "fix: check the path"),
        ("calc_fiev.py", "fix: did you mean calc_five.py?"),
        ("no/such/folder.py", "fix: check the path"),
        (".", "'.' is a folder, not a server\n  fix: name the file that makes the server: ./server.py"),
        ("../place", "'../place' is not a server\n  fix: name a Python file or a module; check the path"),
        (
            "shop_five",
            "'shop_five' is a folder, not a server\n  fix: name the file that makes the server: shop_five/app.py",
        ),
        ("127.0.0.1:8000", "fix: write the whole address: http://127.0.0.1:8000/mcp"),
        ("localhost:8000/tools", "fix: write the whole address: http://localhost:8000/tools"),
        ("notes_five.md", "'notes_five.md' is not a server\n  fix: name a Python file or a module"),
        ("./calc_five", "did you mean ./calc_five.py?"),
        ("calc_five:nothing", "calc_five has no 'nothing'\n  fix: it has one, two"),
        ("calc_five", "several servers: one, two\n  fix: name one: calc_five:one"),
        ("calc_five:number", "is 'int', not a server\n  fix: name the object made with `Server(...)`: calc_five:one"),
        ("factory_five:make", "is 'function', not a server\n  fix: add one at module level: server = Server(...)"),
        ("broken_five", "importing 'broken_five' failed: ZeroDivisionError"),
        ("broken_five.py", "running broken_five.py failed: ZeroDivisionError"),
        ("needs_five", "needs_five.py:7: importing 'needs_five' failed: ModuleNotFoundError"),
        ("needs_five", f"install 'absent_dependency' for {sys.executable}"),
        ("needs_five.py", f"install 'absent_dependency' for {sys.executable}"),
        ("empty_five", "no server\n  fix: add one at module level"),
    ],
)
def test_what_cannot_be_found_is_explained(target: str, complaint: str):
    Path("shop_five").mkdir()
    write("shop_five/app.py", "")
    write("calc_five.py", "one, two, number = Server('1'), Server('2'), 3")
    write("factory_five.py", "def make(): return Server('1')")
    write("broken_five.py", "1 / 0")
    write("needs_five.py", "\nimport absent_dependency")
    write("empty_five.py", "")
    Path("notes_five.md").write_text("Notes")
    with pytest.raises(UsageError) as caught:
        load_server(target)
    assert complaint in str(caught.value)
