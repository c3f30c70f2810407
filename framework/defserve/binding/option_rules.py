"""Which values options may have. A wrong one would act as another, or fail only in a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.wire.jsonvalue import is_mapping

Fix = Callable[[str, Any], str]


class OptionRule:
    """What an option may be, and what to write instead. A secret is not shown."""

    __slots__ = ("fits", "fix", "is_secret")

    def __init__(self, fits: Callable[[Any], bool], fix: Fix, *, is_secret: bool = False) -> None:
        self.fits, self.fix, self.is_secret = fits, fix, is_secret


def one_of(*choices: Any) -> OptionRule:
    def fits(value: Any) -> bool:
        # By identity: 1 equals True.
        return any(value is choice or (choice.__class__ is str and value == choice) for choice in choices)

    return OptionRule(fits, lambda name, value: f"use one of {', '.join(map(repr, choices))}")


def is_list(value: Any) -> bool:
    return not isinstance(value, str) and hasattr(value, "__iter__")


TEXT: Final = OptionRule(lambda value: isinstance(value, str), lambda name, value: f'write {name}="{value}"')
LIST: Final = OptionRule(is_list, lambda name, value: f"write {name}=[{value!r}]")
OBJECT: Final = OptionRule(is_mapping, lambda name, value: f'write {name}={{"…": …}}')


def impossible(given: Mapping[str, Any], rules: Mapping[str, OptionRule]) -> tuple[str, str] | None:
    """The first option with a value that is not possible, as it is written, and its fix. None is what was not given."""
    for name, value in given.items():
        rule = rules.get(name) if value is not None else None
        if rule is not None and not rule.fits(value):
            return f"{name}={'…' if rule.is_secret else repr(value)}", rule.fix(name, value)
    return None
