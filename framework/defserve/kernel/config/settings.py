"""Kinds of settings in a TOML file. Each checks a value, names its mistakes, and describes itself as JSON Schema."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.wire.jsonvalue import is_array, is_object

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands in the file: `("servers", 0, "mgp", "trust_level")`."""


class Mistake(NamedTuple):
    """What is wrong at a place of the file, and how to correct it."""

    path: Path
    problem: str
    fix: str = ""


Report: TypeAlias = Callable[[Mistake], None]
WRONG: Final = object()
"""What `read` returns for a value that it has reported."""
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Setting(ABC):
    """One setting. `about` is what an editor shows."""

    about: str

    @abstractmethod
    def read(self, value: Any, path: Path, report: Report) -> Any:
        """The checked value, or WRONG after reporting why."""

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        return {"description": self.about, **self._type()}

    @abstractmethod
    def _type(self) -> dict[str, Any]:
        """The part of it that says which values there are."""

    def _wrong(self, path: Path, report: Report, problem: str, fix: str) -> Any:
        report(Mistake(path, problem, fix))
        return WRONG


@dataclass(frozen=True, slots=True)
class Text(Setting):
    """A text: one of `choices` or `aliases` (other spellings of a choice), or one that matches `pattern`."""

    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    pattern: str = ""
    example: str = ""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, str) or not value:
            return self._wrong(path, report, "must be a text that is not empty", self._fix(path))
        if self.choices:
            chosen = self.aliases.get(value, value)
            wrong = chosen not in self.choices
            return self._wrong(path, report, f"cannot be {_shown(value)}", self._fix(path)) if wrong else chosen
        if self.pattern and not re.fullmatch(self.pattern, value):
            return self._wrong(path, report, f"cannot be {_shown(value)}", self._fix(path))
        return value

    def _fix(self, path: Path) -> str:
        if self.choices:
            return f"use one of {', '.join(self.choices)}"
        return f'write {path[-1]} = "{self.example or "…"}"'

    def _type(self) -> dict[str, Any]:
        if self.choices:
            return {"enum": [*self.choices, *self.aliases]}
        return {"type": "string", "minLength": 1, **({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})}


@dataclass(frozen=True, slots=True)
class Number(Setting):
    """A number from `least` to `most`; with `whole`, without a fraction."""

    least: float = 0
    most: float = 1_000_000
    whole: bool = False

    def read(self, value: Any, path: Path, report: Report) -> Any:
        kinds = int if self.whole else int | float
        # A comparison with NaN is false, so it is refused as well.
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
            what = "whole number" if self.whole else "number"
            return self._wrong(
                path, report, f"cannot be {_shown(value)}", f"give a {what} from {self.least:g} to {self.most:g}"
            )
        return value

    def _type(self) -> dict[str, Any]:
        return {"type": "integer" if self.whole else "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Flag(Setting):
    """True or false."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, bool):
            return self._wrong(path, report, f"cannot be {_shown(value)}", "write true or false")
        return value

    def _type(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Texts(Setting):
    """A list of texts, which becomes a tuple. Empty ones are allowed where `blank` says so."""

    choices: tuple[str, ...] = ()
    blank: bool = False

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not is_array(value) or not all(isinstance(item, str) and (item or self.blank) for item in value):
            return self._wrong(path, report, "must be a list of texts", f'write {path[-1]} = ["…"]')
        for item in value:
            if self.choices and item not in self.choices:
                return self._wrong(
                    path, report, f"cannot contain {_shown(item)}", f"use some of {', '.join(self.choices)}"
                )
        return tuple(value)

    def _type(self) -> dict[str, Any]:
        items: dict[str, Any] = {"enum": list(self.choices)} if self.choices else {"type": "string"}
        return {"type": "array", "items": items}


@dataclass(frozen=True, slots=True)
class TextTable(Setting):
    """A table whose names match `pattern` and whose values are texts."""

    pattern: str = r".+"

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f'write {path[-1]} = {{ NAME = "…" }}')
        for name, item in value.items():
            if not isinstance(item, str):
                return self._wrong((*path, name), report, "must be a text", f'write {name} = "…"')
            if not re.fullmatch(self.pattern, name):
                return self._wrong((*path, name), report, f"cannot be called {_shown(name)}", "use a plain name")
        return dict(value)

    def _type(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Table(Setting):
    """A table of named settings. The values that are wrong are left out of what `read` returns."""

    settings: Mapping[str, Setting]
    required: tuple[str, ...] = ()

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f"write [{path[-1]}] on a line of its own")
        for name in self.required:
            if name not in value:
                report(Mistake(path, f"has no {name}", f'add {name} = "…"'))
        read: dict[str, Any] = {}
        for name, item in value.items():
            known = self.settings.get(name)
            if known is None:
                report(Mistake((*path, name), "is not a setting", _instead(name, self.settings)))
            elif (checked := known.read(item, (*path, name), report)) is not WRONG:
                read[name] = checked
        return read

    def _type(self) -> dict[str, Any]:
        properties = {name: setting.schema() for name, setting in self.settings.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "additionalProperties": False, "properties": properties, **required}


@dataclass(frozen=True, slots=True)
class Tables(Setting):
    """A table of tables with names of the operator's choice, all of one form."""

    each: Table

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f"write [{path[-1]}.NAME] on a line of its own")
        read = {name: self.each.read(item, (*path, name), report) for name, item in value.items()}
        return {name: item for name, item in read.items() if item is not WRONG}

    def _type(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.each.schema()}


@dataclass(frozen=True, slots=True)
class Either(Setting):
    """A table, or something simpler in its place."""

    table: Table
    other: Setting

    def read(self, value: Any, path: Path, report: Report) -> Any:
        return (self.table if is_object(value) else self.other).read(value, path, report)

    def _type(self) -> dict[str, Any]:
        return {"anyOf": [self.other.schema(), self.table.schema()]}


@dataclass(frozen=True, slots=True)
class Anything(Setting):
    """What is accepted and has no effect here."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        return value

    def _type(self) -> dict[str, Any]:
        return {}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or too long a number
        return "so large a value"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _instead(name: str, known: Mapping[str, Setting]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"use some of {', '.join(known)}"
