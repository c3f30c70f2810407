"""Envelopes: what is read, what is refused and why, and that any bytes at all are one or the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.core.messages import EncodedJson
from defserve.protocols.mcpx.envelope import (
    MAX_DEPTH,
    MAX_KEYS,
    MAX_MEMBERS,
    MCPX_PROTOCOL,
    BrokenEnvelope,
    Envelope,
    parse_envelope,
)
from tests.effort import cpu_within
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPX-3.0")

SAMPLE: dict[str, Any] = {
    "protocol": MCPX_PROTOCOL,
    "id": "env-1",
    "ts": "2025-08-26T14:00:00Z",
    "from": "robot-alpha",
    "to": ["coordinator"],
    "kind": "mcp/request:tools/call",
    "correlation_id": "env-0",
    "payload": {"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
}


def sample(**changes: Any) -> bytes:
    fields = {name.rstrip("_"): value for name, value in changes.items()}
    return json.dumps({name: value for name, value in (SAMPLE | fields).items() if value is not ...}).encode()


def envelope(data: bytes) -> Envelope:
    found = parse_envelope(data)
    assert isinstance(found, Envelope), found.message
    return found


def broken(data: bytes) -> BrokenEnvelope:
    found = parse_envelope(data)
    assert isinstance(found, BrokenEnvelope)
    return found


def test_every_field_is_read_and_the_bytes_are_kept():
    found = envelope(sample())
    assert (found.id, found.sender, found.to, found.kind) == ("env-1", "robot-alpha", ("coordinator",), SAMPLE["kind"])
    assert (found.ts, found.correlation_id, found.payload) == (SAMPLE["ts"], "env-0", SAMPLE["payload"])
    assert found.frame == sample()


@for_each_row("name", ["ts", "to", "correlation_id"])
@for_each_row("value", [..., None])
def test_what_may_be_missing_may_be_missing(name: str, value: Any):
    envelope(sample(**{name: value}))


def test_no_recipients_are_everyone():
    assert envelope(sample(to=[])).to == envelope(sample(to=...)).to == ()
    assert envelope(sample()).to == ("coordinator",)


@pytest.mark.req("MCPX-6.1v")
@for_each_row("protocol", ["mcpx/v0.2", "mcp-x/v0", "mcpx/v0.10", "MCPX/V0.1", 1, None, ...])
def test_any_other_version_is_refused(protocol: Any):
    found = broken(sample(protocol=protocol))
    assert found.reason == "wrong_version" and (found.id, found.sender) == ("env-1", "robot-alpha")


UNFIT: dict[str, list[Any]] = {
    "id": [..., "", 7, "x" * 257],
    "from_": [..., "", 7, None],
    "kind": [..., "", 7, "mcp/request:", "a:" + "x" * 4096],
    "ts": ["yesterday", 7, "2025-08-26", "2025-08-26T14:00:00"],
    "to": ["coordinator", [7], [""], {}],
    "correlation_id": ["", 7, []],
    "payload": [..., None, [], "text"],
}


@for_each_row("changes", [{name: value} for name, values in UNFIT.items() for value in values])
def test_a_field_that_does_not_fit_is_named(changes: dict[str, Any]):
    found = broken(sample(**changes))
    (name,) = changes
    assert found.reason == "invalid_envelope" and found.message.startswith(name.rstrip("_"))


@for_each_row("data", [b"", b"{", b"\xff", b"NaN", b'{"a": 1e999', b"[" * 100_000])
def test_what_is_not_json_is_told_so(data: bytes):
    assert broken(data).reason == "not_json"


@for_each_row("data", [b"[]", b"3", b'"text"', b"null"])
def test_json_that_is_no_object_is_no_envelope(data: bytes):
    assert broken(data).reason == "invalid_envelope"


@for_each_row("again", ['"kind": "chat"', '"\\u006bind": "chat"', '"from": "boss"', '"payload": {}', '"to": []'])
def test_a_decisive_field_that_is_given_twice_is_refused(again: str):
    found = broken(sample()[:-1] + f", {again}}}".encode())
    assert found.reason == "invalid_envelope" and "twice" in found.message


def test_a_payload_may_repeat_the_names_of_the_envelope():
    text = {"kind": "k", "from": "f", "to": "t", "payload": {"kind": "é"}}
    assert envelope(sample(payload=text)).payload == text


def test_unknown_fields_are_kept_in_the_frame():
    assert b'"extra"' in envelope(sample(extra=1)).frame


def test_an_envelope_of_ours_always_has_a_time_and_an_id_of_its_own():
    one, other = (envelope(Envelope("chat", "ann", {"text": "hi"}).encode()) for _ in range(2))
    assert one.ts and one.id != other.id and one.to == () and one.correlation_id is None


def test_a_payload_in_bytes_is_copied_as_it_stands():
    raw = EncodedJson(b'{ "n": 1.50, "n2": 12345678901234567890123 }')
    written = Envelope("chat", "ann", raw, to=["bob"], correlation_id="c").encode()
    assert raw in written and envelope(written).payload["n"] == 1.5  # pyright: ignore[reportIndexIssue, reportArgumentType, reportCallIssue]


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@pytest.mark.slow
@given(sender=names, to=st.lists(names, max_size=3), about=st.none() | names, text=st.text(max_size=50))
def test_what_is_written_is_read_back(sender: str, to: list[str], about: str | None, text: str):
    wrote = Envelope("chat", sender, {"text": text}, to=to, correlation_id=about)
    read = envelope(wrote.encode())
    for name in ("id", "sender", "to", "kind", "correlation_id"):
        assert getattr(read, name) == getattr(wrote, name)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_broken(data: bytes):
    assert isinstance(parse_envelope(data), Envelope | BrokenEnvelope)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(name=st.sampled_from(sorted(SAMPLE)), value=json_values)
def test_any_value_of_any_field_is_an_envelope_or_broken(name: str, value: Any):
    assert isinstance(parse_envelope(json.dumps(SAMPLE | {name: value}).encode()), Envelope | BrokenEnvelope)


# -- frames that are meant to cost time

LONG = 1_000_000
EXTRA = ",".join(f'"{number:06x}":0' for number in range(LONG // 11))
ESCAPE = "\\u0061"
ESCAPED = ",".join(f'"{ESCAPE * 4}{number:x}":0' for number in range(LONG // 40))
COSTLY = {
    "very many members": f'{{{EXTRA},"{ESCAPE}":0,%s}}',
    "very many members, one of them twice": f'{{{EXTRA},"000000":0,"{ESCAPE}":0,%s}}',
    "the same member again and again": "{" + '"kind":1,' * (LONG // 9) + "%s}",
    "members with escapes": f"{{{ESCAPED},%s}}",
    "a wide object inside": f'{{%s,"x":{{{EXTRA}}},"{ESCAPE}":0}}',
    "very many objects inside": '{%s,"x":[' + "{}," * (LONG // 3) + f'0],"{ESCAPE}":0}}',
    "very many arrays inside": '{%s,"x":[' + "[]," * (LONG // 3) + f'0],"{ESCAPE}":0}}',
    "depth": '{%s,"x":' + "[" * 150 + "]" * 150 + f',"{ESCAPE}":"' + "z" * LONG + '"}',
    "a number of very many digits": '{%s,"x":' + "9" * LONG + "}",
    "very many escapes": f'{{%s,"x":"{ESCAPE * (LONG // 6)}"}}',
}


@for_each_row("shape", COSTLY)
def test_the_work_on_a_frame_grows_only_with_its_length(shape: str):
    frame = (COSTLY[shape] % sample().decode()[1:-1]).encode()
    assert len(frame) > LONG / 2
    assert cpu_within(2.0, lambda: parse_envelope(frame)), shape


def test_an_envelope_has_a_bounded_number_of_members():
    extra = {f"x{number}": 0 for number in range(MAX_MEMBERS - len(SAMPLE))}
    envelope(sample(**extra))
    assert "at most 64 members" in broken(sample(**extra, more=0)).message


def test_a_payload_is_as_deep_and_as_wide_as_a_message_may_be():
    def nested(levels: int) -> Any:
        return json.loads("[" * levels + "]" * levels)

    envelope(sample(payload={"x": nested(MAX_DEPTH - 2), "y": {f"k{n}": 0 for n in range(MAX_KEYS)}}))
    assert "nested deeper than" in broken(sample(payload={"x": nested(MAX_DEPTH - 1)})).message
    wide = broken(sample(payload={"y": {f"k{n}": 0 for n in range(MAX_KEYS + 1)}}))
    assert (wide.reason, wide.message) == ("invalid_envelope", "an object has more than 10000 members")
