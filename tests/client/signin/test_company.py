"""Clients that nobody here wrote, and ours, come in by a company's provider and by credentials of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc import jwk
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from defserve.auth import DPoP, OAuthProxy, RegisteredClient, TrustedIssuer
from defserve.cli.commands.login import run_login
from defserve.client import ClientCredentials, CrossAppAccess, RemoteServer
from defserve.client.signin.fetching import SignInError
from defserve.errors import PeerError
from tests.auth.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider_at_address
from tests.auth.served import served

pytestmark = pytest.mark.anyio

KEY = jwk.ECKey.generate_key("P-256", {"kid": "agent-1"})
SECRET = "s" * 40


@pytest.fixture(scope="module")
def company() -> Iterator[Provider]:
    with provider_at_address() as provider:
        yield provider


@pytest.fixture(scope="module")
def url(company: Provider) -> Iterator[str]:
    def make(url: str) -> OAuthProxy:
        return OAuthProxy(
            url=url,
            scopes=["notes:read"],
            optional_scopes=["notes:write"],
            issuers=[TrustedIssuer(company.issuer, scopes=["notes:read", "notes:write"])],
            clients=[
                RegisteredClient("claude", secret=SECRET),
                RegisteredClient("job", secret=SECRET, scopes=["notes:read"]),
                RegisteredClient("agent", key=KEY.as_pem(private=False), scopes=["notes:read", "notes:write"]),
            ],
            dpop=DPoP(),
        )

    with served(make) as address:
        yield address


class Kept:
    """What the official client keeps."""

    tokens: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return None

    async def set_client_info(self, client_info: Any) -> None: ...


@asynccontextmanager
async def official_client(url: str, auth: Any) -> AsyncIterator[ClientSession]:
    async with httpx2.AsyncClient(auth=auth, trust_env=False) as http:
        async with streamable_http_client(url, http_client=http) as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield session


async def ask_official_client(url: str, auth: Any, tool: str = "who") -> str:
    async with official_client(url, auth) as session:
        return (await session.call_tool(tool, {})).content[0].text


def issuer_of(url: str) -> str:
    return url.removesuffix("/mcp")


async def test_the_official_client_comes_in_by_an_identity_assertion(company: Provider, url: str) -> None:
    async def fetch_id_jag(audience: str, resource: str) -> str:
        return company.make_id_jag(audience, "claude", resource=resource, scope="notes:read")

    for method in ("client_secret_post", "client_secret_basic"):
        auth = IdentityAssertionOAuthProvider(
            url, Kept(), "claude", SECRET, issuer_of(url), fetch_id_jag, token_endpoint_auth_method=method
        )
        assert await ask_official_client(url, auth) == f"{company.issuer}|ann"


async def test_the_official_client_acts_for_itself_with_a_secret(url: str) -> None:
    auth = ClientCredentialsOAuthProvider(url, Kept(), "job", SECRET, issuer=issuer_of(url))
    assert await ask_official_client(url, auth) == f"{issuer_of(url)}|job"


async def test_the_official_client_acts_for_itself_with_a_signature(url: str) -> None:
    signing = SignedJWTParameters(
        issuer="agent", subject="agent", signing_key=KEY.as_pem(private=True).decode(), signing_algorithm="ES256"
    )
    auth = PrivateKeyJWTOAuthProvider(
        url, Kept(), "agent", signing.create_assertion_provider(), scope="notes:read", issuer=issuer_of(url)
    )
    assert await ask_official_client(url, auth) == f"{issuer_of(url)}|agent"


def make_cross_app_access(company: Provider, **options: Any) -> CrossAppAccess:
    idp = {"idp_client_id": CLIENT_ID, "idp_client_secret": CLIENT_SECRET}
    given = {"id_token": lambda: "the person's ID token", "client_id": "claude", "client_secret": SECRET, **idp}
    return CrossAppAccess(idp_token_endpoint=f"{company.issuer}/token", **{**given, **options})


@pytest.mark.parametrize("dpop", [False, True])
@pytest.mark.req("MCP-AUTH-13")
async def test_our_client_comes_in_by_the_companys_provider(company: Provider, url: str, dpop: bool) -> None:
    auth = make_cross_app_access(company, scopes=["notes:read", "notes:write"], dpop=dpop)
    async with RemoteServer(url, auth=auth).connect() as client:
        assert await client.call("who") == f"{company.issuer}|ann"
        assert await client.call("write") == "written"
    assert company.forms[-1]["audience"] == issuer_of(url)


async def test_our_client_asks_for_more_when_a_tool_needs_it(company: Provider, url: str) -> None:
    async with RemoteServer(url, auth=make_cross_app_access(company, scopes=["notes:read"])).connect() as client:
        assert await client.call("write") == "written"


@pytest.mark.parametrize("how", [{"client_secret": SECRET}, {"private_key": KEY.as_pem(private=True)}])
async def test_our_client_acts_for_itself(url: str, how: dict[str, Any]) -> None:
    name = "job" if "client_secret" in how else "agent"
    async with RemoteServer(url, auth=ClientCredentials(name, **how)).connect() as client:
        assert await client.call("who") == f"{issuer_of(url)}|{name}"


async def test_a_client_that_is_not_known_is_told_so(url: str) -> None:
    with pytest.raises((PeerError, SignInError), match="invalid_client"):
        async with RemoteServer(url, auth=ClientCredentials("nobody", SECRET)).connect() as client:
            await client.call("who")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


async def test_the_command_line_signs_a_client_in(url: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from anyio import to_thread

    (config / "key.pem").write_bytes(KEY.as_pem(private=True))
    argv = [url, "--client-id", "agent", "--client-key-file", str(config / "key.pem"), "--as-client", "--json"]
    assert await to_thread.run_sync(run_login, argv) == 0
    assert json.loads(capsys.readouterr().out)["issuer"] == issuer_of(url)


async def test_the_command_line_comes_in_by_the_companys_provider(
    company: Provider, url: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyio import to_thread

    for name, text in (("secret", SECRET), ("id-token", "token"), ("idp-secret", CLIENT_SECRET)):
        (config / name).write_text(text)
    argv = [url, "--client-id", "claude", "--client-secret-file", str(config / "secret"), "--json"]
    argv += ["--identity-provider", f"{company.issuer}/token", "--id-token-file", str(config / "id-token")]
    argv += ["--idp-client-id", CLIENT_ID, "--idp-client-secret-file", str(config / "idp-secret")]
    assert await to_thread.run_sync(run_login, argv) == 0
    assert json.loads(capsys.readouterr().out)["scopes"] == ["notes:read"]
