"""The YAML block at the head of a `SKILL.md`, as the JSON value that every implementation makes of it.

YAML 1.2 with its core schema: a date is a text, `yes` is a text, `0o17` is fifteen. PyYAML finds the words, and the
values are made here. What JSON cannot say, or what could grow (aliases), is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Final, cast

from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

LONGEST: Final = 32 * 1024
DEEPEST: Final = 16

_BLOCK: Final = re.compile(r"\ufeff?---\r?\n(?:(?P<yaml>.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# YAML 1.1 takes these for the end of a line, and YAML 1.2 does not.
_OLD_BREAKS: Final = re.compile("[\x85\u2028\u2029]")

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NOT_NUMBERS: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LONGEST_NUMBER: Final = 320
_LARGEST: Final = sys.float_info.max
_STRING: Final = "tag:yaml.org,2002:str"
_CONTAINERS: Final = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


class BadFrontmatter(ValueError):
    """The text says what is wrong."""


def read_frontmatter(text: str) -> Params:
    """The frontmatter of a `SKILL.md`. Raises BadFrontmatter."""
    # The block of a valid file ends within the bound, so no more is searched.
    found = _BLOCK.match(text[: LONGEST + 16])
    if found is None or found.end() > LONGEST:
        if text.removeprefix("\ufeff").startswith("---"):
            raise BadFrontmatter(f"the frontmatter has no closing line `---` within its first {LONGEST} characters")
        raise BadFrontmatter("it does not begin with frontmatter, a YAML block between two lines `---`")
    value = parse_yaml(found["yaml"] or "")
    if not is_object(value):
        raise BadFrontmatter("the frontmatter is not a YAML mapping of names to values")
    return value


def parse_yaml(text: str) -> Any:
    """One YAML document as a JSON value. Raises BadFrontmatter for broken YAML, and for what JSON cannot say."""
    if len(text) > LONGEST:
        raise BadFrontmatter(f"the frontmatter is longer than {LONGEST} characters")
    if old := _OLD_BREAKS.search(text):
        raise BadFrontmatter(f'U+{ord(old[0]):04X} is not read alike by all: write it as an escape in "quotes"')
    import yaml

    # YAML 1.2: the last line of a block text ends, even if no line break follows.
    whole = f"{text}\n" if text.rpartition("\n")[2].strip() else text
    parse = cast("Callable[[str, Any], Iterator[Any]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
    builder = _Builder()
    try:
        for event in parse(whole, yaml.SafeLoader):
            builder.take(type(event).__name__, event)
    except yaml.YAMLError as error:
        raise BadFrontmatter(f"the frontmatter is not YAML: {_short(error)}") from None
    return builder.value


class _Builder:
    """Makes one JSON value of YAML events. It keeps its own stack, so depth costs no recursion."""

    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str | None] = []
        self._documents = 0

    def take(self, kind: str, event: Any) -> None:
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise BadFrontmatter("the frontmatter is more than one YAML document")
        elif kind == "AliasEvent":
            raise _at(event, f"the alias *{event.anchor} is not supported: write the value out")
        elif kind == "ScalarEvent":
            self._put(event, _scalar(event))
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._begin(event, {} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()

    def _begin(self, event: Any, container: list[Any] | dict[str, Any]) -> None:
        if event.tag not in _CONTAINERS:
            raise _at(event, f"the tag {event.tag} is not supported")
        if len(self._open) == DEEPEST:
            raise _at(event, f"it is nested deeper than {DEEPEST} levels")
        self._put(event, container)
        self._open.append(container)
        self._keys.append(None)

    def _put(self, event: Any, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        inside = self._open[-1]
        if isinstance(inside, list):
            inside.append(value)
        elif (key := self._keys[-1]) is not None:
            inside[key] = value
            self._keys[-1] = None
        elif not isinstance(value, str):
            raise _at(event, 'a name that is not a text: put it into "quotes"')
        elif value in inside:
            raise _at(event, f"{value[:64]!r} is there twice")
        else:
            self._keys[-1] = value


def _scalar(event: Any) -> Any:
    """A scalar by the core schema: quoted ones are texts, plain ones what they look like."""
    text = _joined(event)
    if event.tag in ("!", _STRING) or (event.tag is None and not event.implicit[0]):
        return text
    if event.tag is not None:
        raise _at(event, f"the tag {event.tag} is not supported")
    if text in _WORDS:
        return _WORDS[text]
    for pattern, read in _NUMBERS:
        if pattern.fullmatch(text):
            number = read(text) if len(text) <= _LONGEST_NUMBER else inf
            if abs(number) <= _LARGEST:
                return number
            raise _at(event, 'a number is too large for JSON: put it into "quotes"')
    if _NOT_NUMBERS.fullmatch(text):
        raise _at(event, f'JSON has no {text}: put it into "quotes"')
    return text


def _joined(event: Any) -> str:
    """The text, with a character that was written as two escapes as one."""
    text: str = event.value
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _at(event, "an escape stands for half a character") from None


_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...]] = (
    (_INTEGER, int),
    (re.compile("0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile("0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (_FLOAT, float),
)


def _at(event: Any, problem: str) -> BadFrontmatter:
    return BadFrontmatter(f"line {event.start_mark.line + 2}: {problem}")


# The usual mistakes.
_HINTS: Final = {
    "mapping values": ' (put a text with ": " in it into "quotes")',
    r"'\t'": " (write blanks instead of tabs)",
}


def _short(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 2}: " if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error)[:200]
    hint = next((hint for words, hint in _HINTS.items() if words in problem), "")
    return f"{place}{problem}{hint}"


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: `1` is `1.0`, and `true` is not `1`."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if is_object(one) and is_object(other):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if is_array(one) and is_array(other):
        return len(one) == len(other) and all(map(same_json, one, other))
    return one == other
