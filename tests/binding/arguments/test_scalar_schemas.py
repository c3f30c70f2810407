"""Which JSON type an annotation has: one of the four, and text for whatever JSON has no type for."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import pathlib
import re
import uuid
from typing import Any

import pytest
from pydantic import AnyUrl, SecretStr

from defserve.extending import Tool
from tests.rows import for_each_row


class Colour(enum.Enum):
    RED = "red"


SCALARS: list[tuple[Any, str]] = [(str, "string"), (int, "integer"), (float, "number"), (bool, "boolean")]
OTHERS: list[Any] = [
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    pathlib.Path,
    bytes,
    re.Pattern[str],
    ipaddress.IPv4Address,
    Colour,
    AnyUrl,
    SecretStr,
]


@pytest.mark.req("GGEN-SCH-1")
@for_each_row(("annotation", "name"), [*SCALARS, *((other, "string") for other in OTHERS)])
def test_what_json_has_no_type_for_is_text(annotation: Any, name: str):
    def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = annotation
    schema = Tool.of(take).function.arguments.schema
    assert schema["properties"]["value"]["type"] == name
