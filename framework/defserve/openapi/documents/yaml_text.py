"""YAML read as JSON would be: texts stay texts, keys are texts, and aliases cannot make a document explode."""

from __future__ import annotations

import re
from typing import Any, Final

from defserve.wire.jsonvalue import is_array, is_object

MOST_NODES: Final = 20_000_000
"""Of a document with every alias written out."""

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
    return _as_json(value, {})[0]


def _as_json(value: Any, known: dict[int, tuple[Any, int] | None]) -> tuple[Any, int]:
    """The value with texts for keys, and how many nodes it has with every alias written out."""
    if not is_object(value) and not is_array(value):
        return value, 1
    if id(value) in known:
        done = known[id(value)]
        if done is None:
            raise ValueError("an alias stands inside what it names")
        return done
    known[id(value)] = None
    made: Any
    if is_object(value):
        pairs: list[tuple[str, Any]] = [(_key(key), _as_json(item, known)) for key, item in value.items()]
        made = {key: item for key, (item, _) in pairs}
        size = 1 + sum(count for _, (_, count) in pairs)
    else:
        items = [_as_json(item, known) for item in value]
        made, size = [item for item, _ in items], 1 + sum(count for _, count in items)
    if size > MOST_NODES:
        raise ValueError(f"its aliases make more than {MOST_NODES} values of it")
    known[id(value)] = made, size
    return made, size


def _key(key: Any) -> str:
    return key if isinstance(key, str) else {None: "null", True: "true", False: "false"}.get(key) or str(key)
