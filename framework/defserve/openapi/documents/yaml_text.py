"""YAML read as JSON would be: texts stay texts, keys are texts, and aliases cannot make a document explode."""

from __future__ import annotations

import re
from typing import Any, Final

from defserve.wire.jsonvalue import is_array, is_object

MOST_NODES: Final = 20_000_000
"""Of a document with every alias written out."""

MOST_MERGED: Final = 1_000_000
"""Of all merge keys in a document: each copies what it names, and that may have come of merge keys as well."""
MERGE: Final = "<<"

_PLAIN: Final = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("tag:yaml.org,2002:float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
)
"""YAML 1.2's own forms. In 1.1 `no`, `on` and dates are no texts, and country lists lose Norway."""


def read_yaml(text: str) -> Any:
    """The value of a YAML document. Raises ValueError for what is not one, or would be too large."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        yaml_implicit_resolvers: dict[Any, Any] = {}

    for tag, pattern, first in _PLAIN:
        Loader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), [c if c != "\0" else "" for c in first])
    try:
        value: Any = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return _Reading().as_json(value)[0]


class _Reading:
    """One document on its way to JSON."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int] | None] = {}
        self._merged = 0

    def as_json(self, value: Any) -> tuple[Any, int]:
        """The value with texts for keys, and how many nodes it has with every alias written out."""
        if not is_object(value) and not is_array(value):
            return value, 1
        if id(value) in self._known:
            done = self._known[id(value)]
            if done is None:
                raise ValueError("an alias stands inside what it names")
            return done
        self._known[id(value)] = None
        made: Any
        if is_object(value):
            pairs: list[tuple[str, Any]] = [(_key(key), self.as_json(item)) for key, item in value.items()]
            made = self._with_merged({key: item for key, (item, _) in pairs})
            size = 1 + sum(count for _, (_, count) in pairs)
        else:
            items = [self.as_json(item) for item in value]
            made, size = [item for item, _ in items], 1 + sum(count for _, count in items)
        if size > MOST_NODES:
            raise ValueError(f"its aliases make more than {MOST_NODES} values of it")
        self._known[id(value)] = made, size
        return made, size

    def _with_merged(self, made: dict[str, Any]) -> dict[str, Any]:
        """A mapping with those that `<<` names written into it, the first of them and its own keys before others."""
        given = made.get(MERGE)
        bases: list[Any] = [given] if is_object(given) else list(given) if is_array(given) else []
        if not bases or not all(map(is_object, bases)):
            return made
        self._merged += sum(map(len, bases))
        if self._merged > MOST_MERGED:
            raise ValueError(f"its merge keys (<<) copy more than {MOST_MERGED} values")
        found: dict[str, Any] = {}
        for base in (*reversed(bases), made):
            found |= base
        del found[MERGE]
        return found


def _key(key: Any) -> str:
    return key if isinstance(key, str) else {None: "null", True: "true", False: "false"}.get(key) or str(key)
