"""A `FrozenDataclass` is used, told and compared as a frozen dataclass is."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any

import pytest

from defserve.base.frozen import FrozenDataclass
from tests.rows import for_each_row


class Place(FrozenDataclass):
    city: str
    zip: int = 0


class House(Place):
    floors: int = 1


@dataclass(frozen=True)
class PlainPlace:
    city: str
    zip: int = 0


@dataclass(frozen=True)
class PlainHouse(PlainPlace):
    floors: int = 1


LOOKS: dict[str, Callable[[Any], Any]] = {
    "made": lambda cls: vars(cls("Rome", floors=2)),
    "repr": lambda cls: repr(cls("Rome")).replace("Plain", ""),
    "equal": lambda cls: cls("Rome") == cls("Rome", 0, 1) and cls("Rome") != cls("Oslo") and cls("Rome") != "Rome",
    "hash": lambda cls: hash(cls("Rome")),
    "fields": lambda cls: [one.name for one in fields(cls)],
    "replace": lambda cls: vars(replace(cls("Rome"), zip=3)),
    "signature": lambda cls: str(inspect.signature(cls)),
    "matched": lambda cls: cls.__match_args__,
    "copied": lambda cls: copy.deepcopy(cls("Rome")) == pickle.loads(pickle.dumps(cls("Rome"))) == cls("Rome"),
}


@for_each_row("look", LOOKS)
def test_it_is_as_a_dataclass(look: str):
    assert LOOKS[look](House) == LOOKS[look](PlainHouse)


@for_each_row(
    ("given", "named"), [((), {}), (("Rome", 1, 2, 3), {}), (("Rome",), {"city": "Oslo"}), (("Rome",), {"rooms": 1})]
)
def test_what_is_missing_or_too_much_is_refused(given: tuple[Any, ...], named: dict[str, Any]):
    for cls in (House, PlainHouse):
        with pytest.raises(TypeError):
            cls(*given, **named)


def test_it_cannot_be_changed():
    made = House("Rome")
    with pytest.raises(FrozenInstanceError, match="'city'"):
        made.city = "Oslo"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="'city'"):
        del made.city  # type: ignore[misc]
    assert made == House("Rome") != Place("Rome")
