"""Tokens at a gateway: a connection ends with its token, and only bad tokens have to wait."""

from __future__ import annotations

import pytest
from websockets.asyncio.client import connect

from defserve.auth import IssuerUnavailable, live_credentials
from defserve.gateway.policy import Admission
from tests.gateway.topics import Peer, Running, gateway

pytestmark = pytest.mark.anyio


class Changing:
    """A policy that says what the test tells it to."""

    def __init__(self) -> None:
        self.admissions: dict[str | None, Admission] = {
            "t-a": Admission("a", ("chat", "mcp/*")),
            "t-b": Admission("b", ("chat",)),
        }

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        return self.admissions.get(token)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_credentials.LiveCredentials.__init__, "__defaults__", (0.02,))


@pytest.mark.parametrize("change", ["revoked", "somebody else's", "good for less"])
async def test_a_connection_ends_with_its_token(change: str):
    policy = Changing()
    async with gateway() as running:
        running.gateway.policy = policy
        async with running.joined("a") as one, running.joined("b") as other:
            match change:
                case "revoked":
                    del policy.admissions["t-a"]
                case "somebody else's":
                    policy.admissions["t-a"] = Admission("c", ("chat", "mcp/*"))
                case _:
                    policy.admissions["t-a"] = Admission("a", ("chat",))
            assert await one.closed() == (1008, live_credentials.CREDENTIAL_ENDED_REASON)
            await other.is_well()


async def test_a_token_that_is_good_for_more_goes_on():
    policy = Changing()
    async with gateway() as running:
        running.gateway.policy = policy
        async with running.joined("a") as one:
            policy.admissions["t-a"] = Admission("a", ("chat", "mcp/*", "*"))
            await running.site.live.verify_credentials()
            await one.is_well()


class Away:
    """A policy whose issuer does not answer."""

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        raise IssuerUnavailable("no answer")


async def test_who_comes_while_tokens_cannot_be_checked_shall_come_again():
    async with gateway() as running:
        running.gateway.policy = Away()
        assert await attempt(running, "another") == (1013, "tokens cannot be checked at the moment")


async def attempt(running: Running, token: str, **headers: str) -> tuple[int, str] | None:
    """How the connection is closed; None if it is let in."""
    given = {
        "Authorization": f"Bearer {token}",
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    async with connect(running.topic(), additional_headers=given, close_timeout=1) as socket:
        peer = Peer(socket, "")
        if token.startswith("t-"):
            await peer.until("system/welcome")
            return None
        return await peer.closed()


async def test_behind_a_proxy_only_bad_tokens_of_an_address_have_to_wait():
    async with gateway(trusted_proxy=True) as running:
        spoken = [await attempt(running, "guess", X_Forwarded_For="198.51.100.1, 203.0.113.9") for _ in range(12)]
        assert [code for code, _ in filter(None, spoken)] == [1008] * 10 + [1013] * 2
        assert await attempt(running, "t-agent", X_Forwarded_For="203.0.113.9") is None
        # Other addresses are not concerned, and the proxy's own is never counted.
        assert await attempt(running, "guess", X_Forwarded_For="203.0.113.10") == (1008, "invalid token or topic")
        assert {await attempt(running, "guess") for _ in range(12)} == {(1008, "invalid token or topic")}


async def test_on_this_machine_nobody_has_to_wait_whatever_they_say_of_their_address():
    async with gateway() as running:
        spoken = {await attempt(running, "guess", X_Forwarded_For="203.0.113.9") for _ in range(12)}
    assert spoken == {(1008, "invalid token or topic")}
