"""The notation of the tables: one text says which options and operands a program takes, and what they do.

"!w -abc -n,--lines:number --color?always|never -e:pattern@1 -o:write -i?suffix!o -# | pattern read* | read*"

-abc                three options without a value; `-n,--lines` are two names of one option; `-abc.` is one name
:kind               its value, of a kind from `kinds`; `:a+b` has two values; `:a|b` or `:=a` must be spelt so
?kind               its value may be missing, and is attached if there is one
@1                  with this option the operands have the second shape
^mode               what the program does; options of two different modes exclude each other
!w !n !x            it writes, uses the network, runs other programs; `!o`: its operands are written
!e                  it starts an editor, and is refused
!h                  with it, what is written lies outside the working directory
-#                  a number is an option: `-20`
&-r,-f>-n           whoever gives one of the first gives one of the second, too; `&>-n`: everybody does
| kind kind? kind* kind+    the shape of the operands; `/` separates alternatives; no `|`: no operands
+group              the options of a group of the same table
%style              how its words are read, see `Grammar.style`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

Table: TypeAlias = Mapping[str, "str | Table"]
"""Names (several in one key share an entry) → a spec, or the table of sub-commands, where "" has what precedes them."""

EFFECTS: Mapping[str, str] = {"w": "write", "n": "network-use", "x": "run", "o": "operands", "e": "editor", "h": "home"}

_OPTION = re.compile(
    r"(?P<names>-[^:?@!^]*)(?P<value>[:?][^@!^]+)?(?:@(?P<shape>\d))?(?:\^(?P<mode>\w+))?(?:!(?P<effect>[wnxoh]))?"
)


@dataclass(frozen=True, slots=True)
class Option:
    kinds: tuple[str, ...] = ()
    optional: bool = False
    shape: int = 0
    effect: str = ""
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Operand:
    kind: str
    least: int = 1
    most: int | None = 1


@dataclass(frozen=True, slots=True)
class Shape:
    operands: tuple[Operand, ...] = ()
    effect: str = ""

    def rewriting(self) -> Shape:
        """The shape of a command that writes the files which it reads."""
        kinds = {"read": "rewritten"}
        return replace(self, operands=tuple(replace(one, kind=kinds.get(one.kind, one.kind)) for one in self.operands))


@dataclass(frozen=True, slots=True)
class Grammar:
    options: Mapping[str, Option]
    shapes: tuple[tuple[Shape, ...], ...]
    """For each shape its alternatives; the first is that of a command without a choosing option."""
    effects: tuple[str, ...] = ()
    style: frozenset[str] = frozenset()
    """`words`: no clusters; `one`: no clusters, at most one option; `apart`: no attached values; `plain`: no options;
    `leading`: options stand first; `first`: so they do, and no dash comes later; `alone`: needs no sub-command;
    `tasks`: every operand is a task; `never`: refused in every form; `negative`: `-5` is an operand; `early`: what
    chooses between forms stands first."""
    needs: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()
    """Options (none: always) → options of which one must be given as well."""


_USUAL = {"--help": Option(), "--version": Option()}


@cache
def grammar(spec: str, subcommand: bool = False) -> Grammar:
    """Read one spec. A sub-command has no `--help` of its own accord: git and cargo show it with another program."""
    head, *shapes = re.split(r"(?:^|\s)\|(?=\s|$)", spec)
    options, effects = {} if subcommand else dict(_USUAL), list[str]()
    needs: list[tuple[frozenset[str], frozenset[str]]] = []
    style = frozenset(token[1:] for token in head.split() if token[0] == "%")
    for token in head.split():
        if token[0] == "!":
            effects.append(EFFECTS[token[1:]])
        elif token[0] == "-":
            options |= _options(token, clusters=style.isdisjoint({"words", "one"}))
        elif token[0] == "&":
            asking, _, needed = token[1:].partition(">")
            needs.append((frozenset(asking.split(",")) - {""}, frozenset(needed.split(","))))
    return Grammar(
        options, tuple(_shape(shape) for shape in shapes) or ((Shape(),),), tuple(effects), style, tuple(needs)
    )


def _options(token: str, clusters: bool) -> dict[str, Option]:
    if not (found := _OPTION.fullmatch(token)):
        raise ValueError(f"not an option of a table: {token}")
    value = found["value"] or ""
    option = Option(
        kinds=tuple(value[1:].split("+")) if value else (),
        optional=value[:1] == "?",
        shape=int(found["shape"] or 0),
        effect=EFFECTS.get(found["effect"] or "", ""),
        mode=found["mode"] or "",
    )
    names: list[str] = []
    for name in found["names"].split(","):
        cluster = clusters and name[1:2] != "-" and name != "-#" and name[-1] != "."
        names += [f"-{letter}" for letter in name[1:]] if cluster else [name.rstrip(".")]
    return dict.fromkeys(names, option)


def _shape(text: str) -> tuple[Shape, ...]:
    return tuple(_alternative(part.split()) for part in re.split(r"(?:^|\s)/(?=\s|$)", text))


_COUNTS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


def _alternative(tokens: list[str]) -> Shape:
    shape = Shape()
    for token in tokens:
        if token[0] == "!":
            shape = replace(shape, effect=EFFECTS[token[1:]])
        else:
            least, most = _COUNTS.get(token[-1], (1, 1))
            operand = Operand(token.rstrip("?*+"), least, most)
            shape = replace(shape, operands=(*shape.operands, operand))
    return shape


def with_groups(table: Table, groups: Mapping[str, str]) -> Table:
    """The table with every `+group` written out."""

    def written(spec: str) -> str:
        return re.sub(r"(?<!\S)\+(\w+)", lambda found: written(groups[found[1]]), spec)

    return {
        names: written(entry) if isinstance(entry, str) else with_groups(entry, groups)
        for names, entry in table.items()
    }


def by_name(table: Table) -> dict[str, str | Table]:
    """The table with one name a key, at every depth."""
    return {
        name: entry if isinstance(entry, str) else by_name(entry)
        for names, entry in table.items()
        for name in names.split() or [""]
    }
