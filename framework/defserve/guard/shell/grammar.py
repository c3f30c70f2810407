"""Reads the words of a command by the grammar of its program, and says what in them is not known to be harmless.

The words are read as the program reads them: clusters (`-la`), attached values (`-n5`, `--lines=5`), `--`. What the
grammar does not name is refused, an abbreviation as well. Violations of the rules `write`, `network-use` and `run` tell
what a known form does; the level decides whether it may. The notation of the tables is read here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import TypeAlias

from defserve.guard.shell.kinds import find_word_kind
from defserve.guard.shell.places import PathRules
from defserve.guard.verdict import Violation

MAX_PROBLEMS = 20
"""How many problems of a command are told. What comes behind them isn't read: it's refused anyway."""
_SHOWN_ALONE = frozenset("--version -V -v --help -h".split())


# -- The notation of the tables: one text says which options and operands a program takes, and what they do.
#
# "!w -abc -n,--lines:number --color?always|never -e:pattern@1 -o:write -i?suffix!o -# | pattern read* | read*"
#
# -abc                three options without a value; `-n,--lines` are two names of one option; `-abc.` is one name
# :kind               its value, of a kind from `kinds`; `:a+b` has two values; `:a|b` or `:=a` must be spelt so
# ?kind               its value may be missing, and is attached if there is one
# @1                  with this option the operands have the second shape
# ^mode               what the program does; options of two different modes exclude each other
# !w !n !x            it writes, uses the network, runs other programs; `!o`: its operands are written
# !e                  it starts an editor, and is refused
# !h                  with it, what is written lies outside the working directory
# -#                  a number is an option: `-20`
# &-r,-f>-n           whoever gives one of the first gives one of the second, too; `&>-n`: everybody does
# | kind kind? kind* kind+    the shape of the operands; `/` separates alternatives; no `|`: no operands
# +group              the options of a group of the same table
# %style              how its words are read, see `Grammar.style`


@dataclass(frozen=True, slots=True)
class Option:
    kinds: tuple[str, ...] = ()
    optional: bool = False
    shape: int = 0
    effect: str = ""
    mode: str = ""


@dataclass(slots=True)
class Words:
    """The words of a command, sorted."""

    options: list[tuple[str, Option, list[str]]] = field(default_factory=list[tuple[str, Option, list[str]]])
    operands: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])
    """Values in words of their own that come after an operand."""
    problems: list[Violation] = field(default_factory=list[Violation])


def find_violations(
    entry: str | ProgramSpecTable, words: Sequence[str], title: str, places: PathRules, depth: int = 0
) -> Iterator[Violation]:
    """What the words after a program's name break. `entry` is what a table (`split_shared_keys`) says of it."""
    if isinstance(entry, str):
        rules = parse_program_spec(entry, depth > 0)
        if "never" in rules.style:
            yield Violation("wrapper", f"Blocked command: '{title}' can run any program")
        else:
            read = sort_words(words, rules, title)
            yield from _judge_words(read, rules, title, places)
            # Where options end at the first operand (busybox, BSD), what was meant as a value is read as a file.
            if not depth and "words" not in rules.style:
                yield from (found for value in read.late if (found := places.check_read(value)))
        return
    start = entry.get("", "")
    rules = parse_program_spec(start if isinstance(start, str) else "", subcommand=True)
    read = sort_words(words, rules, title, leading=True)
    name, rest = (read.operands or [""])[0], read.operands[1:]
    if read.problems or not name:
        if not (read.problems or "alone" in rules.style or any(flag in _SHOWN_ALONE for flag, _, _ in read.options)):
            yield Violation("subcommand", f"Blocked command: '{title}' without a sub-command")
        yield from _judge_words(read, rules, title, places)
        return
    yield from _values(read.options, title, places)
    if name in entry:
        yield from find_violations(entry[name], rest, f"{title} {name}", places, depth + 1)
    else:
        near = _nearest(name, entry)
        yield Violation("action" if depth else "subcommand", f"Blocked command: '{title} {name}'{near}")


def sort_words(words: Sequence[str], rules: Grammar, title: str, leading: bool = False) -> Words:
    """Tell options, their values and operands apart. `leading`: the first operand ends the options."""
    read, rest = Words(), list(words)
    leading = leading or not rules.style.isdisjoint({"leading", "first"})
    if "at" in rules.style:
        files = (word for word in words if word[:1] == "@")
        read.problems += [Violation("flag", f"Blocked flags of {title}: those in '{word}'") for word in files]
    while rest and len(read.problems) < MAX_PROBLEMS:
        word = rest.pop(0)
        if "plain" in rules.style or len(word) < 2 or word[0] != "-" or _is_negative(word, rules):
            read.operands.append(word)
            if leading:
                late = [word for word in rest if "first" in rules.style and len(word) > 1 and word[0] == "-"]
                read.problems += [_make_late_flag(title, word) for word in late]
                read.operands += rest
                break
        elif word == "--":
            # These read their words themselves, and some go on to read options: `find -- -delete`.
            late = [word for word in rest if "words" in rules.style and len(word) > 1 and word[0] == "-"]
            read.problems += [_make_late_flag(title, word) for word in late]
            read.operands += rest
            break
        else:
            known = len(read.options)
            _read_option(word, rest, rules, title, read)
            # Where options end at the first operand, a late one is a file, and the command does something else.
            if "early" in rules.style and read.operands and any(_is_choice(one) for _, one, _ in read.options[known:]):
                read.problems.append(_make_late_flag(title, word))
    if "one" in rules.style and len(read.options) > 1:
        read.problems.append(_unknown(title, read.options[1][0], rules))
    return read


def _make_late_flag(title: str, word: str) -> Violation:
    return Violation("flag", f"Blocked flag of {title}: '{word}' comes too late")


def _is_negative(word: str, rules: Grammar) -> bool:
    return "negative" in rules.style and re.match(r"-\.?\d", word, re.ASCII) is not None


def _is_choice(option: Option) -> bool:
    return bool(option.shape or option.mode or option.effect or option.kinds)


def _read_option(word: str, rest: list[str], rules: Grammar, title: str, read: Words) -> None:
    """Read one word of options, and take their values from `rest`."""
    known = rules.options
    name, given, value = word.partition("=")
    if word[1] == "-":
        option = known.get(name)
        if option is None:
            read.problems.append(_unknown(title, name, rules))
        elif given and len(option.kinds) != 1:
            read.problems.append(Violation("flag", f"Blocked flag of {title}: '{name}' takes no value after '='"))
        elif given:
            read.options.append((name, option, [value]))
        else:
            _take_option(name, option, rest, title, read)
    elif word in known:
        _take_option(word, known[word], rest, title, read)
    elif "-#" in known and re.fullmatch(r"-\d+", word, re.ASCII):
        read.options.append(("-#", known["-#"], []))
    else:
        _read_cluster(word, rest, rules, title, read)


def _read_cluster(word: str, rest: list[str], rules: Grammar, title: str, read: Words) -> None:
    """`-la`, `-n5`, `-xzf a.tgz`."""
    for at, letter in enumerate(word[1:], 1):
        name, attached = f"-{letter}", word[at + 1 :]
        option = rules.options.get(name)
        single = rules.style.isdisjoint({"words", "one"}) or (at == 1 and option is not None and bool(option.kinds))
        if option is None or not single:
            read.problems.append(_unknown(title, name if single else word, rules))
            return
        if option.kinds and attached:
            if "apart" in rules.style or len(option.kinds) > 1:
                read.problems.append(Violation("flag", f"Blocked flag of {title}: write the value of '{name}' apart"))
            read.options.append((name, option, [attached]))
            return
        _take_option(name, option, rest, title, read)


def _take_option(name: str, option: Option, rest: list[str], title: str, read: Words) -> None:
    """An option in a word of its own, or at the end of a cluster: its values are the next words."""
    if option.optional or not option.kinds:
        read.options.append((name, option, []))
        return
    values, rest[:] = rest[: len(option.kinds)], rest[len(option.kinds) :]
    read.late += values if read.operands else []
    if len(values) < len(option.kinds):
        read.problems.append(Violation("flag", f"Blocked flag of {title}: '{name}' needs a value"))
    for kind, value in zip(option.kinds, values, strict=False):
        # Where a program reads the option in another way, its value would be taken for a flag.
        if len(value) > 1 and value[0] == "-" and not find_word_kind(kind).dashed:
            read.problems.append(Violation("flag", f"Blocked value of {title} {name}: '{value}' starts with a dash"))
    read.options.append((name, option, values))


def _judge_words(read: Words, rules: Grammar, title: str, places: PathRules) -> Iterator[Violation]:
    yield from read.problems
    yield from _values(read.options, title, places)
    yield from (_effect(effect, title) for effect in rules.effects)
    given = {flag for flag, _, _ in read.options}
    for asking, needed in rules.needs:
        if (not asking or asking & given) and not needed & given and not given & {"--help", "--version"}:
            yield Violation(
                "flag", f"Blocked command: '{title}' needs {' or '.join(sorted(needed))}, else it may not end"
            )
    # Which of two modes wins depends on the program, its version, and the order of the options.
    if len({option.mode for _, option, _ in read.options} - {""}) > 1:
        yield _clash(title, [flag for flag, option, _ in read.options if option.mode])
    chosen = {option.shape for _, option, _ in read.options} - {0} or {0}
    if len(chosen) > 1:
        yield _clash(title, [flag for flag, option, _ in read.options if option.shape])
        return
    shape = rules.shapes[chosen.pop()]
    if any(option.effect == "operands" for _, option, _ in read.options):
        shape = [one.rewriting() for one in shape]
    if all(operand.kind == "nothing" for one in shape for operand in one.operands) and any(
        one.operands for one in shape
    ):
        choices = sorted(flag for flag, option in rules.options.items() if option.shape)
        yield Violation("operand", f"Blocked command: '{title}' passes only with {' or '.join(choices)}")
        return
    found = list(_operands(read.operands, shape, title, places))
    yield from found
    yield from _backups(read, places)
    if any(one.rule == "write" for one in found):
        for flag in (flag for flag, option, _ in read.options if option.effect == "home"):
            yield Violation("place", f"Blocked write: {title} {flag} writes outside the working directory")


def _backups(read: Words, places: PathRules) -> Iterator[Violation]:
    """A file that is kept as a copy gets its name and the suffix (`sed -i.conf`, `cp -b -S .py`)."""
    for _, option, values in read.options:
        for kind, suffix in zip(option.kinds, values, strict=False):
            if kind == "suffix":
                names = (f"{word.rstrip('/')}{suffix}" for word in read.operands)
                yield from (found for name in names if (found := places.check_name(name)))


def _clash(title: str, flags: Sequence[str]) -> Violation:
    named = " and ".join(f"'{flag}'" for flag in flags)
    return Violation("flag", f"Blocked flags of {title}: {named} together")


def _values(options: Iterable[tuple[str, Option, list[str]]], title: str, places: PathRules) -> Iterator[Violation]:
    for name, option, values in options:
        if option.effect and option.effect != "home":
            yield _effect(option.effect, title, name)
        for kind, value in zip(option.kinds, values, strict=False):
            if find_word_kind(kind).effect:
                yield _effect(find_word_kind(kind).effect, title, name)
            for found in find_word_kind(kind).find_problems(value, places):
                yield found or Violation(
                    "value", f"Blocked value of {title} {name}: '{value}' is not {_describe_kind(kind)}"
                )


def _operands(words: Sequence[str], shape: Sequence[Shape], title: str, places: PathRules) -> Iterator[Violation]:
    """Judge by the alternative of the right number that least speaks against: it is what was meant."""
    fitting = [(one, kinds) for one in shape if (kinds := _dealt(len(words), one)) is not None]
    if not fitting:
        forms = " or ".join(_form(one) for one in shape)
        yield Violation("operand", f"Blocked operands of {title}: it takes {forms}")
        return
    judged = [(one, list(_judge_operands(words, kinds, title, places)), kinds) for one, kinds in fitting]
    one, found, kinds = min(judged, key=lambda case: len(case[1]))
    yield from found
    effects = {one.effect, *(find_word_kind(kind).effect for kind in kinds)} - {""}
    yield from (_effect(effect, title) for effect in sorted(effects))


def _judge_operands(words: Sequence[str], kinds: Sequence[str], title: str, places: PathRules) -> Iterator[Violation]:
    for word, kind in zip(words, kinds, strict=True):
        for found in find_word_kind(kind).find_problems(word, places):
            yield found or Violation("operand", f"Blocked operand of {title}: '{word}' is not {_describe_kind(kind)}")


def _dealt(count: int, shape: Shape) -> list[str] | None:
    """Which kind each of `count` operands has, or None if the shape has another number of them."""
    spare = count - sum(operand.least for operand in shape.operands)
    kinds: list[str] = []
    for operand in shape.operands:
        more = spare if operand.most is None else min(spare, operand.most - operand.least)
        kinds += [operand.kind] * (operand.least + max(more, 0))
        spare -= max(more, 0)
    return kinds if spare == 0 else None


def _form(shape: Shape) -> str:
    said = [_describe_kind(one.kind) + ("" if one.most == one.least else " …") for one in shape.operands]
    return ", ".join(said) or "no operands"


def _effect(effect: str, title: str, flag: str = "") -> Violation:
    if effect == "editor":
        return Violation("editor", f"Blocked editor: '{title}' needs its message as an option, such as -m")
    rule = "write" if effect == "operands" else effect
    what = f" flag of {title}: '{flag}'" if flag else f": '{title}'"
    return Violation(rule, f"Blocked {rule.replace('-', ' ')}{what}")


def _unknown(title: str, flag: str, rules: Grammar) -> Violation:
    near = _nearest(flag, rules.options)
    return Violation("flag", f"Blocked flag of {title}: '{flag}' is not among those known to be harmless{near}")


def _nearest(word: str, known: Iterable[str]) -> str:
    found = get_close_matches(word, [name for name in known if name], n=1, cutoff=0.75)
    return f"; did you mean '{found[0]}'?" if found and found[0] != word else ""


def _describe_kind(kind: str) -> str:
    return find_word_kind(kind).says


ProgramSpecTable: TypeAlias = Mapping[str, "str | ProgramSpecTable"]
"""Names (several in one key share an entry) → a spec, or the table of sub-commands, where "" has what precedes them."""

EFFECTS: Mapping[str, str] = {"w": "write", "n": "network-use", "x": "run", "o": "operands", "e": "editor", "h": "home"}

_OPTION = re.compile(
    r"(?P<names>-[^:?@!^]*)(?P<value>[:?][^@!^]+)?(?:@(?P<shape>\d))?(?:\^(?P<mode>\w+))?(?:!(?P<effect>[wnxoh]))?"
)


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
    chooses between forms stands first; `at`: no word starts with `@`, which would name a file of further options."""
    needs: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()
    """Options (none: always) → options of which one must be given as well."""


_USUAL = {"--help": Option(), "--version": Option()}


@cache
def parse_program_spec(spec: str, subcommand: bool = False) -> Grammar:
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


def expand_table_groups(table: ProgramSpecTable, groups: Mapping[str, str]) -> ProgramSpecTable:
    """The table with every `+group` written out."""

    def expand_groups(spec: str) -> str:
        return re.sub(r"(?<!\S)\+(\w+)", lambda found: expand_groups(groups[found[1]]), spec)

    return {
        names: expand_groups(entry) if isinstance(entry, str) else expand_table_groups(entry, groups)
        for names, entry in table.items()
    }


def split_shared_keys(table: ProgramSpecTable) -> dict[str, str | ProgramSpecTable]:
    """The table with one name a key, at every depth."""
    return {
        name: entry if isinstance(entry, str) else split_shared_keys(entry)
        for names, entry in table.items()
        for name in names.split() or [""]
    }
