"""Signatures of webhooks: what was signed is genuine, what was changed is not, and others agree."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcp.events.sending import (
    MAX_AGE_SECONDS,
    BadSignature,
    make_webhook_secret,
    parse_webhook_secret,
    sign_webhook,
    verify_webhook,
)
from tests.rows import for_each_row

NOW = 1_767_225_600
KEYS = st.binary(min_size=24, max_size=64)
IDS = st.text("abcdef_0123456789", min_size=1, max_size=40)


def test_a_request_is_signed_as_the_specification_has_it():
    # From the examples of Standard Webhooks.
    key = parse_webhook_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = sign_webhook([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(st.lists(KEYS, min_size=1, max_size=3), IDS, st.binary(max_size=200), st.data())
def test_who_has_one_of_the_keys_takes_it(keys: list[bytes], id: str, body: bytes, data: st.DataObject):
    headers = sign_webhook(keys, id, NOW, body)
    assert verify_webhook([data.draw(st.sampled_from(keys))], headers, body, NOW) == id


@given(KEYS, KEYS, IDS, st.binary(max_size=50), st.binary(max_size=50))
def test_another_key_or_body_is_refused(key: bytes, other: bytes, id: str, body: bytes, changed: bytes):
    headers = sign_webhook([key], id, NOW, body)
    if other != key:
        with pytest.raises(BadSignature):
            verify_webhook([other], headers, body, NOW)
    if changed != body:
        with pytest.raises(BadSignature):
            verify_webhook([key], headers, changed, NOW)


@given(KEYS, IDS, IDS)
def test_the_id_is_signed_too(key: bytes, id: str, other: str):
    headers = {**sign_webhook([key], id, NOW, b"{}"), "webhook-id": other}
    if id != other:
        with pytest.raises(BadSignature):
            verify_webhook([key], headers, b"{}", NOW)


@given(KEYS, st.integers(-10_000, 10_000))
def test_what_is_old_or_ahead_is_refused(key: bytes, age: int):
    headers = sign_webhook([key], "msg_1", NOW - age, b"{}")
    if abs(age) <= MAX_AGE_SECONDS:
        assert verify_webhook([key], headers, b"{}", NOW) == "msg_1"
    else:
        with pytest.raises(BadSignature):
            verify_webhook([key], headers, b"{}", NOW)


@given(st.dictionaries(st.sampled_from(("webhook-id", "webhook-timestamp", "webhook-signature")), st.text(max_size=60)))
def test_headers_of_any_kind_are_refused_and_nothing_else_happens(headers: dict[str, str]):
    with pytest.raises(BadSignature):
        verify_webhook([b"k" * 32], headers, b"{}", NOW)


@given(st.binary(max_size=100))
def test_a_secret_has_so_many_bytes(key: bytes):
    text = "whsec_" + b64encode(key).decode()
    if 24 <= len(key) <= 64:
        assert parse_webhook_secret(text) == key
    else:
        with pytest.raises(ValueError, match="whsec_|bytes"):
            parse_webhook_secret(text)


@for_each_row(
    "text", [None, 7, "", "whsec_", "secret", "WHSEC_" + "A" * 32, "whsec_" + "!" * 32, "whsec_" + "A" * 1000]
)
def test_what_is_no_secret_is_refused_and_not_repeated(text: Any):
    with pytest.raises(ValueError, match="secret") as raised:
        parse_webhook_secret(text)
    assert not isinstance(text, str) or len(text) < 10 or text not in str(raised.value)


def test_a_new_secret_is_one():
    assert len(parse_webhook_secret(make_webhook_secret())) == 32


def test_the_library_of_standard_webhooks_agrees():
    library: Any = pytest.importorskip("standardwebhooks.webhooks")
    secret, body = make_webhook_secret(), b'{"eventId":"evt_1"}'
    headers = sign_webhook([parse_webhook_secret(secret)], "evt_1", int(time.time()), body)
    assert library.Webhook(secret).verify(body, headers) == {"eventId": "evt_1"}
    two = [parse_webhook_secret(make_webhook_secret()), parse_webhook_secret(secret)]
    assert library.Webhook(secret).verify(body, sign_webhook(two, "evt_1", int(time.time()), body))
    with pytest.raises(library.WebhookVerificationError):
        library.Webhook(make_webhook_secret()).verify(body, headers)
