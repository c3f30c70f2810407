"""The tables are data, so they are checked as data: every word of them means something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from defserve.guard.shell.grammar import EFFECTS, Grammar, ProgramSpecTable, parse_program_spec, split_shared_keys
from defserve.guard.shell.kinds import KINDS, find_word_kind
from defserve.guard.shell.tables import OPT_IN_PROGRAM_TABLE, PROGRAM_TABLE, SYNTAX_CHECK_TABLE, TAR_TABLE
from tests.rows import for_each_row

STYLES = frozenset("words one apart plain leading first alone tasks never tar negative at early".split())


def grammars(entry: str | ProgramSpecTable, title: str) -> Iterator[tuple[str, Grammar]]:
    if isinstance(entry, str):
        yield title, parse_program_spec(entry, " " in title)
        return
    for name, inner in split_shared_keys(entry).items():
        yield from grammars(inner, f"{title} {name}")


EVERY = [
    *(
        found
        for table in (PROGRAM_TABLE, OPT_IN_PROGRAM_TABLE, TAR_TABLE)
        for name, entry in table.items()
        for found in grammars(entry, name)
    ),
    *((" ".join(words), parse_program_spec(rules)) for words, rules in SYNTAX_CHECK_TABLE.items()),
]


@for_each_row(("title", "rules"), EVERY, ids=[title for title, _ in EVERY])
def test_a_table_names_kinds_shapes_and_styles_that_exist(title: str, rules: Grammar) -> None:
    assert rules.style <= STYLES
    assert set(rules.effects) <= set(EFFECTS.values())
    for option in rules.options.values():
        assert option.shape < len(rules.shapes)
        assert all(find_word_kind(kind).says for kind in option.kinds)
    for shape in (one for shapes in rules.shapes for one in shapes):
        assert all(find_word_kind(operand.kind).says for operand in shape.operands)
        assert sum(operand.most is None for operand in shape.operands) <= 1, "two open ends could be dealt in two ways"


def test_no_kind_is_left_over() -> None:
    used = {kind for _, rules in EVERY for option in rules.options.values() for kind in option.kinds}
    used |= {one.kind for _, rules in EVERY for shapes in rules.shapes for shape in shapes for one in shape.operands}
    # What a command reads, it writes with an option such as `sed -i`.
    used |= {
        one.kind
        for _, rules in EVERY
        for shapes in rules.shapes
        for shape in shapes
        for one in shape.rewriting().operands
    }
    assert set(KINDS) - used == set()


# Options that say what a program does. A new one of these names needs a mode, or a reason to stand here.
MODE_NAMES = frozenset("--test --list --decompress --uncompress --compress -t -l -d -z".split())
PACKERS = "gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma zstd unzstd".split()


@for_each_row("name", PACKERS)
def test_whatever_chooses_what_a_packer_does_has_a_mode(name: str) -> None:
    rules = parse_program_spec(str(PROGRAM_TABLE[name]))
    assert [flag for flag, option in rules.options.items() if flag in MODE_NAMES and not option.mode] == []


def test_a_spec_with_a_typing_error_is_an_error() -> None:
    with pytest.raises(ValueError, match="not an option"):
        parse_program_spec("-a:number@x")
