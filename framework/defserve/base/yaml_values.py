"""YAML 1.2 as JSON values: a date is a text, `yes` is a text, and nothing in a document can make it explode.

How it works: PyYAML finds the words (its events), and the values are made here, so that no tag makes an object and
depth costs no recursion. There are two manners. The strict one takes what every implementation reads alike, and refuses
whatever could grow. The tolerant one is for large documents that people wrote for other readers: aliases and merge keys
count against a bound, names may be numbers, and a name that is there twice means its last value.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Final, TypeAlias, cast

from defserve.core.json_values import is_array, is_object

MAX_NODES: Final = 20_000_000
"""Of a document with every alias written out."""
MAX_MERGED_VALUES: Final = 1_000_000
"""Of all merge keys in a document: each copies what it names, and that may have come of merge keys as well."""
MERGE: Final = "<<"

_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_Numbers: TypeAlias = tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...]
_CORE_NUMBERS: Final[_Numbers] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile("0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile("0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
)
_JSON_NUMBERS: Final[_Numbers] = (
    (re.compile(r"-?(?:0|[1-9][0-9]*)"), int),
    (re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"), float),
)
"""Without leading zeros: `01234` is a text, such as a postal code."""
_NOT_NUMBERS: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_NUMBER_LENGTH: Final = 320
_MAX_NUMBER: Final = sys.float_info.max
_STRING: Final = "tag:yaml.org,2002:str"
_CONTAINERS: Final = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


class UnsupportedYaml(ValueError):
    """The text is YAML, and holds something that is not accepted."""


def parse_yaml(text: str, what: str, *, max_depth: int, first_line: int = 1, is_tolerant: bool = False) -> Any:
    """The value of one YAML document. Raises UnsupportedYaml, and `yaml.YAMLError` for a text that is not YAML.

    Errors call it `what`, and count its lines from `first_line`.
    """
    import yaml

    # libyaml is ten times as fast. PyYAML's own parser has the better texts for errors.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if is_tolerant else yaml.SafeLoader
    parse = cast("Callable[[str, Any], Iterator[Any]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
    builder = _Builder(max_depth, first_line, is_tolerant)
    documents = 0
    for event in parse(text, loader):
        kind = type(event).__name__
        documents += kind == "DocumentStartEvent"
        if documents > 1:
            raise UnsupportedYaml(f"{what} is more than one YAML document")
        builder.feed_event(kind, event)
    return builder.value


class _Builder:
    """Makes one JSON value of YAML events. It keeps its own stack."""

    def __init__(self, max_depth: int, first_line: int, is_tolerant: bool) -> None:
        self._max_depth, self._first_line, self._is_tolerant = max_depth, first_line, is_tolerant
        self._numbers = _JSON_NUMBERS if is_tolerant else _CORE_NUMBERS
        self.value: Any = None
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str | None] = []
        self._begins: list[tuple[str | None, int]] = []
        self._anchors: dict[str, tuple[Any, int] | None] = {}
        self._nodes = self._merged = 0

    def feed_event(self, kind: str, event: Any) -> None:
        if kind == "ScalarEvent":
            value = self._read_scalar(event)
            self._nodes += 1
            if event.anchor is not None:
                self._anchors[event.anchor] = value, 1
            self._add_value(event, value)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._begin(event, {} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._end()
        elif kind == "AliasEvent":
            self._add_value(event, self._resolve_alias(event))

    def _begin(self, event: Any, container: list[Any] | dict[str, Any]) -> None:
        if event.tag not in _CONTAINERS:
            raise self._refusal(event, f"the tag {event.tag} is not supported")
        if len(self._open) == self._max_depth:
            raise self._refusal(event, f"it is nested deeper than {self._max_depth} levels")
        self._add_value(event, container)
        self._open.append(container)
        self._keys.append(None)
        self._begins.append((event.anchor, self._nodes))
        self._nodes += 1
        if event.anchor is not None:
            self._anchors[event.anchor] = None

    def _end(self) -> None:
        container, (anchor, begin) = self._open.pop(), self._begins.pop()
        self._keys.pop()
        if self._is_tolerant and is_object(container) and MERGE in container:
            self._merge(container)
        if anchor is not None:
            self._anchors[anchor] = container, self._nodes - begin

    def _resolve_alias(self, event: Any) -> Any:
        if not self._is_tolerant:
            raise self._refusal(event, f"the alias *{event.anchor} is not supported: write the value out")
        if event.anchor not in self._anchors:
            raise self._refusal(event, f"the alias *{event.anchor} names nothing")
        if (named := self._anchors[event.anchor]) is None:
            raise self._refusal(event, "an alias stands inside what it names")
        self._nodes += named[1]
        if self._nodes > MAX_NODES:
            raise UnsupportedYaml(f"its aliases make more than {MAX_NODES} values of it")
        return named[0]

    def _merge(self, container: dict[str, Any]) -> None:
        """Write those that `<<` names into a mapping, the first of them and its own keys before others."""
        named = container[MERGE]
        bases: list[Any] = [named] if is_object(named) else list(named) if is_array(named) else []
        if not bases or not all(map(is_object, bases)):
            return
        self._merged += sum(map(len, bases))
        if self._merged > MAX_MERGED_VALUES:
            raise UnsupportedYaml(f"its merge keys (<<) copy more than {MAX_MERGED_VALUES} values")
        own = dict(container)
        container.clear()
        for base in (*reversed(bases), own):
            container |= base
        del container[MERGE]

    def _add_value(self, event: Any, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        inside = self._open[-1]
        if isinstance(inside, list):
            inside.append(value)
        elif (key := self._keys[-1]) is not None:
            inside[key] = value
            self._keys[-1] = None
        else:
            self._keys[-1] = self._read_key(event, value, inside)

    def _read_key(self, event: Any, value: Any, inside: dict[str, Any]) -> str:
        if self._is_tolerant and not isinstance(value, str | dict | list):
            return {None: "null", True: "true", False: "false"}.get(value) or str(value)
        if not isinstance(value, str):
            raise self._refusal(event, 'a name that is not a text: put it into "quotes"')
        if value in inside and not self._is_tolerant:
            raise self._refusal(event, f"{value[:64]!r} is there twice")
        return value

    def _read_scalar(self, event: Any) -> Any:
        """A scalar by the core schema: quoted ones are texts, plain ones what they look like."""
        text = self._join_surrogates(event)
        if event.tag in ("!", _STRING) or (event.tag is None and not event.implicit[0]):
            return text
        if event.tag is not None:
            raise self._refusal(event, f"the tag {event.tag} is not supported")
        if text in _WORDS:
            return _WORDS[text]
        for pattern, read in self._numbers:
            if pattern.fullmatch(text):
                number = read(text) if len(text) <= _MAX_NUMBER_LENGTH else inf
                if abs(number) <= _MAX_NUMBER:
                    return number
                raise self._refusal(event, 'a number is too large for JSON: put it into "quotes"')
        if not self._is_tolerant and _NOT_NUMBERS.fullmatch(text):
            raise self._refusal(event, f'JSON has no {text}: put it into "quotes"')
        return text

    def _join_surrogates(self, event: Any) -> str:
        """The text, with a character that was written as two escapes as one."""
        text: str = event.value
        if not _SURROGATE.search(text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._refusal(event, "an escape stands for half a character") from None

    def _refusal(self, event: Any, problem: str) -> UnsupportedYaml:
        return UnsupportedYaml(f"line {event.start_mark.line + self._first_line}: {problem}")
