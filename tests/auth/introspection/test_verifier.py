from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from defserve import Server
from defserve.auth import Auth, Introspection, IssuerUnavailable, introspection
from defserve.auth.issuers import HttpRequest, HttpResponse
from defserve.errors import UsageError
from tests.auth.web import client, post
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

URL, AUDIENCE, ISSUER = "https://login.example/introspect", "https://tools.example.com/mcp", "https://login.example"


class Issuer:
    """Says what `said` holds about every token, and remembers who asked."""

    def __init__(self, **changed: Any) -> None:
        self.said: Any = {"active": True, "sub": "alice", "aud": AUDIENCE, "scope": "read", **changed}
        self.status, self.asked = 200, list[HttpRequest]()
        self.gate: asyncio.Event | None = None

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.said, Exception):
            raise self.said
        return HttpResponse(
            self.status, {}, self.said if isinstance(self.said, bytes) else json.dumps(self.said).encode()
        )

    def verifier(self, **options: Any) -> Introspection:
        given = {"client_id": "tools", "client_secret": "s+cret", "audience": AUDIENCE, "issuer": ISSUER, **options}
        return Introspection(URL, send=self.send, **given)


def test_an_opaque_token_is_asked_about_once_and_by_this_server_s_own_name() -> None:
    async def scenario() -> None:
        issuer = Issuer()
        asking = issuer.verifier()
        found = await asyncio.gather(*(asking.verify("opaque") for _ in range(5)))
        assert {one.id for one in found if one is not None} == {"alice"} and len(issuer.asked) == 1
        assert found[0] is not None and found[0].scopes == {"read"} and "opaque" not in found[0].credential
        assert issuer.asked[0].form == {"token": "opaque", "token_type_hint": "access_token"}
        assert issuer.asked[0].headers == {"authorization": "Basic dG9vbHM6cyUyQmNyZXQ="}
        await issuer.verifier(method="post").verify("opaque")
        form = issuer.asked[1].form
        assert form is not None and (form["client_id"], form["client_secret"]) == ("tools", "s+cret")

    asyncio.run(scenario())


@for_each_row(
    "changed",
    [
        {"active": False},
        {"aud": "https://other.example/mcp"},
        {"aud": None},
        {"aud": []},
        {"iss": "https://evil.example"},
        {"sub": None},
        {"sub": "local"},
        {"exp": 1},
        {"exp": "9999999999"},
        {"exp": True},
    ],
)
def test_a_token_that_is_not_for_this_server_is_refused_and_not_asked_about_again_at_once(changed: Any) -> None:
    async def scenario() -> None:
        issuer = Issuer(**changed)
        asking = issuer.verifier()
        assert [await asking.verify("opaque") for _ in range(3)] == [None] * 3
        assert len(issuer.asked) == 1

    asyncio.run(scenario())


@for_each_row("said", [b"", b"{}", b"[]", b'{"active": "true"}', b"[" * 100_000, OSError("away"), TimeoutError()])
def test_an_issuer_that_does_not_say_is_no_reason_to_call_a_token_bad(said: Any) -> None:
    async def scenario() -> None:
        issuer = Issuer()
        issuer.said = said
        with pytest.raises(IssuerUnavailable):
            await issuer.verifier().verify("opaque")

    asyncio.run(scenario())


def test_a_token_that_was_taken_back_is_noticed_before_the_next_sweep_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        now = time.monotonic()
        monkeypatch.setattr(introspection.time, "monotonic", lambda: now)
        issuer = Issuer()
        asking = issuer.verifier()
        assert await asking.verify("opaque") is not None
        issuer.said["active"] = False
        assert await asking.verify("opaque") is not None
        now += introspection.GOOD_SECONDS
        assert await asking.verify("opaque") is None
        assert introspection.GOOD_SECONDS < 2

    asyncio.run(scenario())


def test_what_is_kept_is_bounded_in_bytes() -> None:
    async def scenario() -> None:
        issuer = Issuer(active=False, note="x" * 50_000)
        asking = issuer.verifier()
        for number in range(200):
            await asking.verify(f"guess-{number}")
        kept = asking._bad  # pyright: ignore[reportPrivateUsage]
        assert len(kept) * 50_000 <= introspection.BAD_BYTES

    asyncio.run(scenario())


async def test_while_the_issuer_is_away_clients_are_told_to_try_again() -> None:
    issuer = Issuer()
    async with client(Server("s", auth=Auth(issuer.verifier()))) as http:
        assert (await post(http, "opaque", "tools/list")).status_code == 200
        issuer.status = 500
        answer = await post(http, "another", "tools/list")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
        assert "www-authenticate" not in answer.headers


@for_each_row("options", [{"audience": ""}, {"client_id": ""}, {"client_secret": ""}])
def test_settings_that_would_accept_anything_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="needs an audience"):
        Issuer().verifier(**options)
