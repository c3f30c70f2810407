"""Formats: what is published as one, our values fit, as strict clients check them (RFC 3339, 3986, 4122)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from importlib import import_module
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AnyUrl, AwareDatetime, Base64Bytes, BaseModel, NaiveDatetime

from defserve import Server
from defserve.binding.arguments import require_annotation_schemas
from tests.effort import examples
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
STRICT: dict[str, str] = {
    "date": DATE,
    "time": CLOCK + OFFSET,
    "date-time": f"{DATE}[Tt]{CLOCK}{OFFSET}",
    # RFC 3339, appendix A: no sign, no fraction, no gap between units.
    "duration": r"P(?:\d+W|(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)?"
    r"(?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))?(?<!P))",
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}",
    "ipv6": r"[0-9a-fA-F:.]+",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{CHARACTER}*)?(?:{CHARACTER}|/)*(?:\?(?:{CHARACTER}|[/?])*)?(?:#(?:{CHARACTER}|[/?])*)?",
    "email": r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+",
    "regex": r"(?!)",
    # These say nothing that a client checks.
    "binary": r"[\s\S]*",
    "base64": r"[A-Za-z0-9+/=]*",
    "path": r"[\s\S]*",
    "ipv4network": r"[\s\S]*",
    "ipv6network": r"[\s\S]*",
    "fraction": r"[\s\S]*",
}


def _format(validator: Any, name: str, value: Any, schema: Any) -> Any:
    from jsonschema import ValidationError

    if isinstance(value, str) and not re.fullmatch(STRICT[name], value):
        yield ValidationError(f"{value!r} is no {name}")


validators: Any = import_module("jsonschema.validators")
Strict: Any = validators.extend(Draft202012Validator, {"format": _format})

zones = st.sampled_from(
    [None, dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-30)), dt.timezone(dt.timedelta(seconds=3208))]
)


class Colour(Enum):
    RED = "red"


class Visit(BaseModel):
    at: dt.datetime
    until: dt.time | None = None
    took: dt.timedelta = dt.timedelta(seconds=-1.5)
    since: dt.datetime = dt.datetime(2026, 1, 1)


@dataclasses.dataclass
class Slot:
    at: list[dt.datetime]
    by_name: dict[str, dt.timedelta]


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=zones),
    AwareDatetime: st.datetimes(timezones=st.just(dt.UTC)),
    NaiveDatetime: st.datetimes(),
    dt.time: st.times(timezones=st.sampled_from([None, dt.UTC])),
    dt.timedelta: st.timedeltas(),
    UUID: st.uuids(),
    IPv4Address: st.ip_addresses(v=4),
    IPv6Address: st.ip_addresses(v=6) | st.just(IPv6Address("fe80::1%eth0")),
    IPv4Network: st.just(IPv4Network("10.0.0.0/8")),
    IPv6Network: st.just(IPv6Network("fe80::/64")),
    AnyUrl: st.sampled_from(["https://a.example/x?y#z", "http://a/|", "http://a/[%zz", "urn:a:b"]).map(AnyUrl),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False) | st.just(Decimal("1E+5")),
    Fraction: st.fractions(),
    bytes: st.binary(max_size=9).filter(lambda data: data.isascii()),
    Base64Bytes: st.just(b"abc"),
    Path: st.just(Path("/a/b")),
    re.Pattern: st.just(re.compile("(?P<a>b)")),
    complex: st.just(complex(1, -2)),
    Colour: st.just(Colour.RED),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=9),
    Visit: st.builds(Visit, at=st.datetimes(timezones=zones), until=st.times() | st.none(), took=st.timedeltas()),
    Slot: st.builds(
        Slot,
        at=st.lists(st.datetimes(), max_size=2),
        by_name=st.dictionaries(st.text(max_size=3), st.timedeltas(), max_size=2),
    ),
}


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(list(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind])))
def test_every_result_fits_its_published_schema_under_strict_formats(pair: tuple[Any, Any]):
    kind, value = pair
    made = require_annotation_schemas(kind)
    written = json.loads(made.serializer.to_json(value))
    Strict(made.output).validate(written)


@for_each_row("kind", [dt.datetime, dt.time, dt.timedelta, list[dt.datetime], dict[str, dt.time], Visit, Slot])
async def test_what_a_tool_returns_fits_what_it_lists(kind: Any):
    server = Server("t")
    plain: dict[Any, Any] = {
        dt.datetime: dt.datetime(2026, 1, 31, 12, 30),
        dt.time: dt.time(12, 30),
        dt.timedelta: dt.timedelta(days=-1, seconds=0.5),
        Visit: Visit(at=dt.datetime(2026, 1, 31)),
        Slot: Slot([dt.datetime(2026, 1, 31)], {"a": dt.timedelta(seconds=-0.5)}),
    }
    value: Any = plain.get(kind, [dt.datetime(2026, 1, 31)] if kind == list[dt.datetime] else {"a": dt.time(1)})

    def f() -> Any:
        """Return it."""
        return value

    f.__annotations__["return"] = kind
    server.tool(structured=True)(f)
    async with server.connect() as client:
        (listed,) = await client.tools()
        result = await client.call_raw("f")
    schema = listed["outputSchema"]
    assert result["structuredContent"] is not None
    Strict(schema).validate(result["structuredContent"])


class Defaulted(BaseModel):
    at: dt.datetime = dt.datetime(2026, 1, 1)
    took: dt.timedelta = dt.timedelta(seconds=-1)


def test_a_default_fits_the_format_beside_it():
    server = Server("t")

    @server.tool
    def f(
        at: dt.datetime = dt.datetime(2026, 1, 1), on: dt.date = dt.date(2026, 1, 1), more: Defaulted | None = None
    ) -> str:
        """Take times."""
        return ""

    tool = server.mcp.tools.registry.get("f")
    assert tool is not None
    schema = tool.function.arguments.schema
    assert schema["properties"]["on"]["format"] == "date"
    for node in [schema["properties"]["at"], *_nodes(schema["properties"]["more"])]:
        if "default" in node:
            Strict(node).validate(node["default"])


def _nodes(schema: Any) -> list[Any]:
    if isinstance(schema, list):
        return [node for one in schema for node in _nodes(one)]  # pyright: ignore
    return [schema, *(n for v in schema.values() for n in _nodes(v))] if isinstance(schema, dict) else []  # pyright: ignore


INPUTS: dict[Any, list[str]] = {
    dt.date: ["2026-01-31"],
    dt.datetime: ["2026-01-31T12:30:00Z", "2026-01-31t12:30:00.123456789z", "2026-01-31T12:30:00+05:30"],
    AwareDatetime: ["2026-01-31T12:30:00-00:00"],
    NaiveDatetime: ["2026-01-31T12:30:00"],
    dt.time: ["12:30:00Z", "12:30:00.5+01:00"],
    dt.timedelta: ["P1Y2M3D", "P2W", "PT1H2M3S", "P1DT12H"],
    UUID: ["123e4567-e89b-42d3-a456-426614174000"],
    AnyUrl: ["urn:isbn:0451450523", "https://example.com/a?b#c"],
}


@for_each_row("kind", list(INPUTS))
def test_what_fits_a_published_format_is_accepted(kind: Any):
    made = require_annotation_schemas(kind)
    for text in INPUTS[kind]:
        Strict(made.json).validate(text)
        made.validator.validate_python(text)


def test_a_time_that_must_have_no_offset_is_not_published_with_one():
    assert require_annotation_schemas(NaiveDatetime).json == {"type": "string"}
