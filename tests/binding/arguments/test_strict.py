"""Types that pydantic takes as they are: a caller writes them in JSON all the same."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from defserve.errors import BadArguments
from tests.binding.arguments.test_schema import Shade, named, one
from tests.rows import for_each_row


class Visit(BaseModel, strict=True):
    day: datetime.date
    shade: Shade | None = None
    size: tuple[int, int] = (0, 0)
    cost: Decimal | None = None


@pydantic_dataclass(config=ConfigDict(strict=True))
class Trip:
    visits: list[Visit]


class Night(typing_extensions.TypedDict):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    day: datetime.date


DAY = datetime.date(2026, 1, 31)
VISIT = {"day": "2026-01-31", "shade": "dark", "size": [1, 2], "cost": "1.5"}


@for_each_row(
    ("annotation", "sent", "value"),
    [
        (Visit, VISIT, Visit(day=DAY, shade=Shade.DARK, size=(1, 2), cost=Decimal("1.5"))),
        (list[Visit] | None, [{"day": "2026-01-31"}], [Visit(day=DAY)]),
        (Trip, {"visits": [{"day": "2026-01-31"}]}, Trip([Visit(day=DAY)])),
        (Night, {"day": "2026-01-31"}, {"day": DAY}),
        (Annotated[datetime.date, Strict()], "2026-01-31", DAY),
        (Annotated[Shade, Field(strict=True)], "dark", Shade.DARK),
        (Annotated[set[int], Field(strict=True)], [1], {1}),
        (Annotated[Path, Strict()], "/a", Path("/a")),
        (Annotated[uuid.UUID, Strict()], str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (Annotated[bytes, Strict()], "ä", "ä".encode()),
        (Visit, Visit(day=DAY), Visit(day=DAY)),  # a transform's own value
    ],
    ids=named,
)
def test_a_strict_type_takes_what_json_can_say(annotation: Any, sent: Any, value: Any) -> None:
    assert one(annotation).validate({"x": sent}) == {"x": value}


@for_each_row(
    ("annotation", "sent", "problem"),
    [
        (Visit, {"day": 5}, "x.day: expected date (YYYY-MM-DD), got 5"),
        (Visit, VISIT | {"size": ["1", 2]}, 'x.size[0]: expected integer, got "1"'),
        (Trip, {"visits": [VISIT | {"shade": "odd"}]}, 'x.visits[0].shade: expected "dark" or "light", got "odd"'),
    ],
    ids=named,
)
def test_a_strict_type_converts_nothing_that_json_can_say(annotation: Any, sent: Any, problem: str) -> None:
    with pytest.raises(BadArguments) as caught:
        one(annotation).validate({"x": sent})
    assert str(caught.value) == problem
