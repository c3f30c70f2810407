from __future__ import annotations

import asyncio
import http.server
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jwt.algorithms import ECAlgorithm

from defserve.auth import signing_keys
from defserve.auth.signing_keys import (
    ASYMMETRIC_ALGORITHMS,
    GRACE,
    MAX_ISSUER_RESPONSE_BYTES,
    PAUSE,
    RETRY,
    KeySet,
    download_document,
    parse_key_set,
)
from tests.auth.issuer import jwk, key_set, private_key
from tests.rows import for_each_row

ALL = frozenset(ASYMMETRIC_ALGORITHMS)
URL = "https://login.example/keys"
ONE = jwk(private_key("ES256", "one"), "ES256", kid="one")
TWO = jwk(private_key("ES256", "two"), "ES256", kid="two")


class Issuer:
    """Publishes `document` (or fails with it), counts how often it is asked, and owns the clock."""

    def __init__(self, document: bytes | Exception) -> None:
        self.document, self.asked, self.now = document, 0, 5_000.0
        self.reached = asyncio.Event()
        self.keys = KeySet(URL, ALL, fetch=self.fetch, ttl=600, clock=lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        assert url == URL
        self.asked += 1
        self.reached.set()
        await asyncio.sleep(0)
        if isinstance(self.document, Exception):
            raise self.document
        return self.document

    async def has(self, kid: str | None, algorithm: str = "ES256") -> bool:
        return await self.keys.find_key(kid, algorithm) is not None


def test_keys_are_fetched_once_and_kept() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        assert [await issuer.has("one") for _ in range(3)] == [True] * 3
        assert issuer.asked == 1
        issuer.now += 600
        assert await issuer.has("one")
        assert issuer.asked == 2

    asyncio.run(scenario())


def test_a_crowd_at_the_start_causes_one_fetch() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        assert all(await asyncio.gather(*(issuer.has("one") for _ in range(50))))
        assert issuer.asked == 1

    asyncio.run(scenario())


def test_an_unknown_key_id_causes_one_fetch_a_minute_at_most() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        await issuer.has("one")
        issuer.now += PAUSE
        for number in range(1_000):
            assert not await issuer.has(f"../../etc/passwd?{number}' OR 1=1 --")
        assert issuer.asked == 2
        issuer.now += PAUSE - 1
        assert not await issuer.has("x")
        assert issuer.asked == 2

    asyncio.run(scenario())


def test_a_rotated_key_is_found_before_the_old_set_is_out_of_date() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        await issuer.has("one")
        issuer.document = key_set(TWO)
        issuer.now += PAUSE
        assert await issuer.has("two")
        assert not await issuer.has("one")

    asyncio.run(scenario())


def test_an_issuer_that_is_down_at_the_start_is_asked_again_soon() -> None:
    async def scenario() -> None:
        issuer = Issuer(OSError("refused"))
        assert [await issuer.has("one") for _ in range(5)] == [False] * 5
        assert issuer.asked == 1
        issuer.document = key_set(ONE)
        issuer.now += RETRY
        assert await issuer.has("one")

    asyncio.run(scenario())


def test_held_keys_serve_on_for_a_while_when_their_issuer_is_down() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        await issuer.has("one")
        issuer.document = OSError("refused")
        issuer.now += 600
        assert await issuer.has("one")
        issuer.now += GRACE
        assert not await issuer.has("one")

    asyncio.run(scenario())


def test_a_caller_who_hangs_up_does_not_use_up_the_fetch() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE))
        caller = asyncio.create_task(issuer.has("one"))
        await issuer.reached.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await issuer.has("one")
        assert issuer.asked == 1

    asyncio.run(scenario())


def test_a_fetch_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "ISSUER_TIMEOUT_SECONDS", 0.01)

    async def hang(url: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    assert asyncio.run(KeySet(URL, ALL, fetch=hang).find_key("one", "ES256")) is None


def test_a_failed_fetch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "defserve.auth"):
        asyncio.run(Issuer(OSError("connection refused")).has("one"))
    assert "no keys from https://login.example/keys: OSError: connection refused" in caplog.text


def test_a_key_is_found_by_id_and_algorithm() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE, TWO, jwk(private_key("RS256"), "RS256", kid="rsa")))
        assert await issuer.has("rsa", "RS256")
        assert await issuer.has("rsa", "PS512")
        assert not await issuer.has("rsa", "ES256")
        assert not await issuer.has("one", "RS256")
        assert not await issuer.has("one", "HS256")

    asyncio.run(scenario())


def test_without_an_id_only_a_key_without_rival_is_found() -> None:
    async def scenario() -> None:
        issuer = Issuer(key_set(ONE, TWO, jwk(private_key("RS256"), "RS256", kid="rsa")))
        assert await issuer.has(None, "RS256")
        assert not await issuer.has(None, "ES256")

    asyncio.run(scenario())


@for_each_row(
    "member",
    [
        {"kty": "oct", "k": "c2VjcmV0" * 8, "kid": "x"},
        {**ONE, "use": "enc"},
        {**ONE, "key_ops": ["sign"]},
        {**ONE, "alg": "ES384"},
        {**ONE, "alg": "HS256"},
        {**ONE, "crv": "secp256k1"},
        {**ONE, "x": "AAAA"},
        {**ONE, "x": 7},
        ECAlgorithm.to_jwk(private_key("ES256", "one"), as_dict=True),
        {**ONE, "key_ops": 7},
        {"kty": ["EC"]},
        jwk(private_key("RS256", "weak"), "RS256", kid="weak"),
        {"kty": "RSA", "n": "", "e": ""},
        {},
        "key",
        None,
    ],
)
def test_a_member_that_cannot_check_signatures_is_passed_over(member: Any) -> None:
    assert [entry.kid for entry in parse_key_set(key_set(member, TWO), ALL)] == ["two"]


@for_each_row("fields", [{"use": "sig"}, {"key_ops": ["verify"]}, {"alg": "ES256"}, {"kid": None}])
def test_a_member_may_say_what_it_is_for(fields: dict[str, Any]) -> None:
    assert len(parse_key_set(key_set({**ONE, **fields}), ALL)) == 1


@for_each_row(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b"\xff",
        b"[" * 100_000,
        b" " * MAX_ISSUER_RESPONSE_BYTES + key_set(ONE),
        key_set(*[ONE] * 65),
    ],
    ids=range(9),
)
def test_a_document_without_keys_leaves_none(document: bytes) -> None:
    assert asyncio.run(Issuer(document).has("one")) is False


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = {"/keys": (200, key_set(ONE)), "/large": (200, b" " * (MAX_ISSUER_RESPONSE_BYTES * 4))}.get(
            self.path, (302, b"")
        )
        self.send_response(status)
        self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def served() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_document_is_downloaded_without_redirects_or_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with served() as base:
        assert json.loads(asyncio.run(download_document(f"{base}/keys"))) == {"keys": [ONE]}
        with pytest.raises(OSError, match="status 302"):
            asyncio.run(download_document(f"{base}/moved"))
        with pytest.raises(OSError, match="larger than"):
            asyncio.run(download_document(f"{base}/large"))
