from __future__ import annotations

import json
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcpl.manifest import encode_canonical_json, format_number
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPL-05")


@for_each_row(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_the_numbers_of_rfc_8785(bits: str, text: str):
    assert format_number(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


@for_each_row(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (-0.0, "0"),
        (10, "10"),
        (1e16, "10000000000000000"),
        (1e-05, "0.00001"),
        (1e-07, "1e-7"),
        (123.456, "123.456"),
        (0.1, "0.1"),
        (100.25, "100.25"),
        (2**53 + 1, "9007199254740992"),
        (10**21, "1e+21"),
        (10**20, "100000000000000000000"),
    ],
)
def test_numbers_are_written_as_in_ecmascript(value: float, text: str):
    assert format_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_leads_back_to_itself(value: float):
    text = format_number(value)
    assert float(text) == value
    assert re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*[1-9])?(e[+-][1-9]\d*)?", text)
    plain = "e" not in text
    assert plain == (value == 0 or 1e-6 <= abs(value) < 1e21)


@for_each_row("value", [float("nan"), float("inf"), -float("inf"), 10**400, "\ud800", {"\udc00": 1}, b"x", {1}])
def test_what_json_cannot_hold_is_refused(value: Any):
    with pytest.raises(ValueError):
        encode_canonical_json(value)


def test_members_are_sorted_by_utf_16():
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(encode_canonical_json(value))) == [
        "\r",
        "1",
        "\u0080",
        "\u00f6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]


def test_only_what_must_be_is_escaped():
    value = '"\\\b\t\n\f\r\x00\x1f/\x7f\u2028\u2029é\U0001f600'
    assert encode_canonical_json(value).decode() == '"\\"\\\\\\b\\t\\n\\f\\r\\u0000\\u001f/\x7f\u2028\u2029é\U0001f600"'


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_the_canonical_text_is_the_same_value_and_has_no_other_form(value: Any):
    text = encode_canonical_json(value)
    assert json.loads(text, parse_int=float) == value
    assert encode_canonical_json(json.loads(text)) == text
