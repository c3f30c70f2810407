"""The tables of one server are added to a TOML file or removed; everything else stays where it is."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.tooling import toml_tables
from defserve.tooling.jsonc import BrokenDocument, NotEditable
from tests.rows import for_each_row

PATH = ("mcp_servers", "calc")
ENTRY = {"command": "python", "args": ["-m", "calc"], "env": {"K": "v"}}
TABLES = '[mcp_servers.calc]\ncommand = "python"\nargs = ["-m", "calc"]\n\n[mcp_servers.calc.env]\nK = "v"\n'

SETTINGS = '''# mine
model = "x" # [mcp_servers.calc]

[mcp_servers.files]
command = "npx" # ]
args = [
  "a", # "
]

[notes]
text = """
[mcp_servers.calc]
"""
'''


def test_a_server_goes_to_the_end() -> None:
    assert toml_tables.set_value(SETTINGS, PATH, ENTRY) == f"{SETTINGS}\n{TABLES}"
    assert toml_tables.set_value("", PATH, ENTRY) == TABLES


def test_putting_in_and_taking_out_again_gives_the_same_text() -> None:
    assert toml_tables.remove(toml_tables.set_value(SETTINGS, PATH, ENTRY), PATH) == SETTINGS


def test_a_known_server_is_replaced_in_its_place() -> None:
    before = f"a = 1\n\n# about calc\n{TABLES}\n# about b\n[b]\nc = 1\n"
    after = 'a = 1\n\n# about calc\n[mcp_servers.calc]\nurl = "u"\n\n# about b\n[b]\nc = 1\n'
    assert toml_tables.set_value(before, PATH, {"url": "u"}) == after


def test_the_same_server_again_changes_nothing() -> None:
    once = toml_tables.set_value(SETTINGS, PATH, ENTRY)
    assert toml_tables.set_value(once, PATH, ENTRY) == once


@for_each_row(
    ("text", "left"),
    [
        ('[mcp_servers]\ncalc = {command = "x"}\nb.c = 1\n', "[mcp_servers]\nb.c = 1\n"),
        ('[mcp_servers]\ncalc.command = "x"\ncalc.args = [\n"["]\n', "[mcp_servers]\n"),
        ('mcp_servers.calc.command = "x"\nb = 1\n', "b = 1\n"),
        ('[mcp_servers."calc"]\ncommand = "x"\n# of calc\nargs = []\n\n# of z\n[z]\n', "# of z\n[z]\n"),
        ("[mcp_servers.calc]\r\na = 1\r\n\r\n[z]\r\n", "[z]\r\n"),
        ("[ mcp_servers . 'calc' ]\na = 1", ""),
    ],
)
def test_however_a_server_is_written_it_can_be_taken_out(text: str, left: str) -> None:
    assert toml_tables.remove(text, PATH) == left


def test_servers_written_as_one_value_are_edited_inside_it() -> None:
    text = "# mine\nmcp_servers = {calc = {a = 1}, b = {}}\n"
    assert tomllib.loads(toml_tables.set_value(text, PATH, ENTRY)) == {"mcp_servers": {"calc": ENTRY, "b": {}}}
    assert tomllib.loads(toml_tables.remove(text, PATH)) == {"mcp_servers": {"b": {}}}
    assert toml_tables.remove(text, PATH).startswith("# mine\nmcp_servers = {")


def test_a_server_in_several_places_is_removed_from_all_of_them() -> None:
    text = "[mcp_servers.calc]\na = 1\n# about n\n[n]\n\n[mcp_servers.calc.env]\nb = 1\n\n# about q\n[q]\n"
    assert toml_tables.remove(text, PATH) == "# about n\n[n]\n\n# about q\n[q]\n"


def test_a_place_that_is_no_table_is_refused() -> None:
    with pytest.raises(NotEditable, match="mcp_servers is not a table"):
        toml_tables.set_value("mcp_servers = 1\n", PATH, ENTRY)


def test_what_is_broken_is_named_with_its_line() -> None:
    with pytest.raises(BrokenDocument) as caught:
        toml_tables.set_value("a = 1\nb = = 2\n", PATH, ENTRY)
    assert caught.value.line == 2


letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
entries = st.fixed_dictionaries(
    {"command": letters},
    optional={"args": st.lists(letters, max_size=3), "env": st.dictionaries(letters, letters, min_size=1, max_size=2)},
)
statements = st.sampled_from(
    [
        "# a comment",
        "",
        "x{0} = 1",
        "[t{0}]",
        "[t{0}.'in side']",
        '[mcp_servers.s{0}]\ncommand = "c" # [mcp_servers.calc]',
        "[[list{0}]]",
        "s{0} = '''\n[mcp_servers.calc]\n'''",
        's{0} = """\\"""\n] # """',
        "a{0} = [ # [\n  '[', # ]\n]",
        "i{0} = {{a = [1, 2], b = '#'}}",
    ]
)


@given(st.lists(statements, max_size=5), st.lists(statements, max_size=5))
def test_removing_a_server_from_the_middle_keeps_every_other_line(above: list[str], below: list[str]) -> None:
    before = "".join(f"{line.format(number)}\n" for number, line in enumerate(above))
    # What follows a table without a header of its own would belong to it.
    behind = "".join(f"{line.format(number)}\n" for number, line in enumerate(["[t{0}]", *below], 10))
    text = f"{before}{TABLES}# mine\n{behind}"
    left = toml_tables.remove(text, PATH)
    assert tomllib.loads(left) == tomllib.loads(before + behind)
    assert left.split() == f"{before}# mine\n{behind}".split()


@pytest.mark.slow
@given(st.lists(statements, max_size=8), entries, letters)
def test_any_file_keeps_all_but_the_one_server(lines: list[str], entry: dict[str, Any], name: str) -> None:
    text = "".join(f"{line.format(number)}\n" for number, line in enumerate(lines))
    before = tomllib.loads(text)
    edited = toml_tables.set_value(text, ("mcp_servers", name), entry)
    assert edited.startswith(text)
    assert tomllib.loads(edited) == {**before, "mcp_servers": {**before.get("mcp_servers", {}), name: entry}}
    left = toml_tables.remove(edited, ("mcp_servers", name))
    assert left.rstrip("\n") == text.rstrip("\n")
