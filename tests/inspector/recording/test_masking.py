from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.base.redaction import REDACTION_MASK
from defserve.inspector.call_code import SavedCall, format_call_command, format_call_test
from defserve.inspector.recording.masking import (
    mask_address,
    mask_command_words,
    mask_headers,
    mask_text,
    mask_value,
    mask_value_at,
)
from defserve.inspector.recording.recorder import RecordedExchange, Recorder, summarize_message
from tests.effort import cpu_within, examples
from tests.rows import for_each_row

secrets = st.from_regex(r"SECRET[a-z0-9]{6,40}", fullmatch=True)

MEMBERS = (
    "password passwords api_key apiKey access_token client_secret sessionid sessionId Authorization cookie sig".split()
)
PARAMETERS = (
    "sig X-Amz-Signature X-Amz-Credential api_key key token access_token auth session password code api%5Fkey".split()
)
HEADERS = "X-Auth Authorization X-Api-Key Cookie Set-Cookie X-Session X-Signature Proxy-Authorization X-My-Token"
SHAPES: list[Callable[[str, str], Any]] = [
    lambda name, secret: {name: secret},
    lambda name, secret: {name: [secret]},
    lambda name, secret: {name: {"value": secret}},
    lambda name, secret: {name: {"type": secret}},
    lambda name, secret: {name: [{"a": [secret]}]},
    lambda name, secret: {"properties": {name: {"type": "string", "default": secret, "examples": [secret]}}},
    lambda name, secret: {"name": name, "value": secret},
    lambda name, secret: {"key": name, "value": [secret]},
    lambda name, secret: [name, secret],
    lambda name, secret: f"https://h/a?b=1&{name}={secret}",
]
PLACES: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: [value],
    lambda value: {"headers": [value]},
    json.dumps,
    lambda value: json.dumps(value, indent=2),
    lambda value: json.dumps({"pad": "x" * 4100, "a": value}, separators=(",", ":")),
    lambda value: json.dumps({"a": json.dumps(value)}),
]
TEXTS = (
    [f"https://h/a?b=1&{name}=%s" for name in PARAMETERS]
    + [f"see http://h/?{name}=%s." for name in PARAMETERS]
    + ["Bearer %s", "Basic %s", "postgres://u:%s@h/db", "https://%s1234567890@h/", "password=%s", "'sessionid': '%s'"]
    + ['so: {"name":"password","value":"%s"} it is', 'so {"Authorization": "%s"', "[a] [b] {'password': '%s'}"]
    + ['so: {"passwords":["%s"]} it is', "it says {'password': {'value': '%s'}}"]
)


def shown_of(value: Any) -> str:
    """A value in every place that shows it: messages, notices in a row, an answer, code."""
    recorder = Recorder()
    params = {"level": "info", "data": value, "arguments": value}
    for message in (
        {"id": 1, "method": "tools/call", "params": {"name": "a", "arguments": value}},
        {"id": 1, "result": {"content": [{"type": "text", "text": value}], "structuredContent": value}},
        {"method": "notifications/message", "params": params},
        {"id": 2, "error": {"code": 1, "message": value, "data": value}},
    ):
        recorder.append("stateless", "received", json.dumps(message).encode())
        # Cut, as a very long one is.
        recorder.append("stateless", "received", json.dumps(message).encode()[:-1])
    shown = [recorder.describe_message(seq) for seq in range(recorder.count)]
    calls = [SavedCall("a", {"x": value}, {"error": value}), SavedCall("a", {}, {"structuredContent": value})]
    return json.dumps([shown, format_call_command(("s.py",), "a", {"x": value}), format_call_test(("s.py",), calls)])


@pytest.mark.slow
@given(secrets, st.sampled_from(MEMBERS), st.sampled_from(SHAPES), st.sampled_from(PLACES))
def test_a_secret_under_its_name_is_shown_nowhere(secret: str, name: str, shape: Any, place: Any):
    assert secret not in shown_of(place(shape(name, secret)))


# Each name is in each place and in each shape, though not in all pairs of them.
NAMED = [
    (shape, place, ("passwords", "sessionid", "Authorization")[(row + column) % 3])
    for row, shape in enumerate(SHAPES)
    for column, place in enumerate(PLACES)
]


@for_each_row("shape, place, name", NAMED)
def test_each_shape_of_a_secret_is_masked_in_each_place(shape: Any, place: Any, name: str):
    assert "SECRETabc1234" not in shown_of(place(shape(name, "SECRETabc1234")))


@for_each_row("row, text", [*enumerate(TEXTS)])
def test_a_secret_in_a_text_is_shown_nowhere(row: int, text: str):
    """Each text in two places, which are other ones for the next text."""
    text = text.replace("%s", "SECRETabc1234")
    for place in (PLACES[row % len(PLACES)], PLACES[(row + 3) % len(PLACES)]):
        assert "SECRETabc1234" not in shown_of(place({"x": text}))
    assert "SECRETabc1234" not in summarize_message({"method": "resources/read", "params": {"uri": text}})


@given(secrets, st.sampled_from(HEADERS.split()))
def test_of_a_secret_header_two_characters_are_shown_at_most(secret: str, name: str):
    for shown in mask_headers({name: secret, name.lower(): secret}).values():
        assert shown == REDACTION_MASK or (len(shown) == 3 and len(secret) >= 24)


@for_each_row(
    "value",
    ["Bearer SECRETabcdefgh", "Basic SECRETabcdefgh", "SECRETk3jh5k2j3h5k2jh35kj2", "a=1; https://h/?sig=SECRETx"],
)
def test_a_header_of_any_name_is_masked_by_its_look(value: str):
    recorder = Recorder()
    recorder.append("stateless", "sent", b"{}")
    address = f"http://h/mcp?x=1&sig={quote(value)}"
    recorder.attach(0, RecordedExchange("POST", address, {"X-Custom": value}, 200, {"x-other": value}))
    assert "SECRET" not in json.dumps(recorder.describe_message(0))


def test_what_is_no_secret_stays():
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25", "x-a": "b"}
    headers |= {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "date": "Mon, 16 Nov 2026"}
    assert mask_headers(headers) == headers
    schema = {"properties": {"token": {"type": "string", "description": "of you"}}, "required": ["token", "a"]}
    plain = {"inputSchema": schema, "key": "north", "_meta": {"progressToken": "a"}, "usage": {"inputTokens": 5}}
    plain |= {"password": None, "secret": True, "text": "a = b?c=d&e=f", "json": '{ "a" : 1 }', "image": "iVBOR" * 2000}
    assert mask_value(plain) == plain
    assert mask_text("http://h/mcp?page=2") == "http://h/mcp?page=2"


WORDS = [
    ("http://h/mcp?api_key=SECRETx1",),
    ("http://u:SECRETx1@h/mcp",),
    ("--", "node", "s.js", "--token", "SECRETx1", "--port", "80"),
    ("--", "node", "s.js", "--api-key=SECRETx1"),
    ("--", "env", "MY_TOKEN=SECRETx1", "node", "s.js"),
    ("--", "npx", "mcp-remote", "http://h", "--header", "X-Auth: SECRETx1"),
]


@for_each_row("words", WORDS)
def test_the_address_of_a_server_and_its_command_are_shown_without_secrets(words: tuple[str, ...]):
    for address in (" ".join(words), words[-1]):
        assert "SECRET" not in mask_address(address, words)
    assert "SECRET" not in " ".join(mask_command_words(words)) and len(mask_command_words(words)) == len(words)
    for code in (format_call_command(words, "a", {}), format_call_test(words, [SavedCall("a", {})])):
        assert "SECRET" not in code and "<fill in the secret>" in code


def test_the_words_of_a_command_without_secrets_stay():
    words = ["--", "node", "s.js", "--port", "80", "--name=a", "http://h/mcp?page=2"]
    assert mask_command_words(words) == words


def test_saved_code_says_what_to_fill_in():
    line = format_call_command(("s.py",), "login", {"user": "me", "password": "SECRETpw"})
    assert line == "defserve call s.py login user=me 'password=<fill in password>'"
    call = SavedCall("login", {"password": "SECRETpw"}, {"structuredContent": {"token": "SECRETt"}})
    test = format_call_test(("s.py",), [call])
    assert "{'password': '<fill in password>'}" in test and "{'token': ANY}" in test


@pytest.mark.parametrize("part", ["?a=", "://", "session", "\n", "secret:[", "&", "a1", "[", "key", '{"a":', "[1,"])
def test_hostile_text_does_not_make_it_slow(part: str):
    text = part * (100_000 // len(part)) + "!"
    # It takes a twentieth of a second. With a square in it, it takes minutes.
    assert cpu_within(5, lambda: mask_headers({"x": mask_text(text), "y": text}))


def test_a_name_that_is_a_secret_is_masked_and_no_member_is_lost():
    keys = [f"ghp_{letter * 36}" for letter in "abc"]
    shown = mask_value({"users": {key: {"name": "Ann"} for key in keys}, "token": {keys[0]: 1, "kind": 2}})
    assert "ghp_a" not in repr(shown)
    assert list(shown["users"].values()) == [{"name": "Ann"}] * 3
    assert shown["token"]["kind"] == REDACTION_MASK
    assert mask_value({"a plain name": 1, "com.example/some-long-name": 2}) == {
        "a plain name": 1,
        "com.example/some-long-name": 2,
    }


NAMES = st.sampled_from(["a", "name", "value", "password", "tokens", "properties", "type", f"ghp_{'a' * 36}"])
TEXTS = st.sampled_from(["a", "password", "x-api-key", f"ghp_{'b' * 36}"])
TREES = st.recursive(
    TEXTS | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)


def places(value: Any, shown: Any) -> Iterator[tuple[list[str], Any, Any]]:
    """Every value in a tree, the names above it, and how it is shown."""
    yield [], value, shown
    if isinstance(value, dict):
        for name, inner in zip(value, shown.values(), strict=True):
            yield from (([name, *names], *found) for names, *found in places(value[name], inner))
    elif isinstance(value, list):
        for place, pair in enumerate(zip(value, shown, strict=True)):
            yield from (([str(place), *names], *found) for names, *found in places(*pair))


@pytest.mark.slow
@given(TREES)
@settings(max_examples=examples(200))
def test_one_value_is_masked_as_it_is_in_the_whole(tree: Any):
    for names, value, shown in places(tree, mask_value(tree)):
        path, alone = mask_value_at(tree, names, value)
        assert alone == shown, names
        assert len(path) == len(names)
