"""Our client signs in to a server of ours, behind `OAuthProxy`: both sides of the same rules, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from defserve.auth import JWT, Auth, DPoP, OAuthProxy
from defserve.auth.dpop import compute_jwk_thumbprint
from defserve.client import RemoteServer, SignIn, StoredSignIn
from defserve.client.signin.credentials import Credential, DpopProofKey, MemoryCredentialStore, Tokens
from defserve.client.signin.issuer import ClientRegistration, IssuerMetadata
from defserve.errors import PeerError
from defserve.serve.address import CredentialsRequired
from tests.auth.browsing import REDIRECT, browse
from tests.auth.issuer import ISSUER, claims, pem, private_key, signed
from tests.auth.served import served
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET, vendor_at_address

pytestmark = pytest.mark.anyio


class Person:
    """Signs in at the vendor, and allows everything."""

    uri = REDIRECT

    def __init__(self) -> None:
        self.visits: list[str] = []

    @asynccontextmanager
    async def open(self, preferred: str, mark: str) -> AsyncIterator[Person]:
        yield self

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        self.visits.append(url)
        return await browse(url, REDIRECT)


@pytest.fixture
def url() -> Iterator[str]:
    with vendor_at_address() as vendor:

        def proxy(url: str) -> OAuthProxy:
            return OAuthProxy(
                "oidc",
                issuer=vendor.issuer,
                client_id=CLIENT_ID,
                client_secret=CLIENT_SECRET,
                url=url,
                allow="*",
                scopes=["notes:read"],
                optional_scopes=["notes:write"],
                scopes_for=lambda claims: ["notes:write"],
            )

        with served(proxy) as address:
            yield address


@pytest.mark.slow
async def test_a_person_signs_in_and_again_for_a_tool_that_needs_more(url: str) -> None:
    person, store = Person(), MemoryCredentialStore()
    async with RemoteServer(url, auth=SignIn(redirect=person, store=store)).connect() as client:
        assert await client.call("who")
        assert len(person.visits) == 1
        assert await client.call("write") == "written"
    assert len(person.visits) == 2 and "notes%3Awrite" in person.visits[1]
    async with RemoteServer(url, auth=SignIn(redirect=person, store=store)).connect() as client:
        assert await client.call("write") == "written"
    assert len(person.visits) == 2


async def test_a_websocket_is_opened_with_the_token_of_the_same_server(url: str) -> None:
    person, store = Person(), MemoryCredentialStore()
    socket = url.replace("http://", "ws://")
    async with RemoteServer(socket, auth=SignIn(redirect=person, store=store)).connect() as client:
        assert await client.call("who") == "u-1"
    assert len(person.visits) == 1
    for address in (url, socket):
        async with RemoteServer(address, auth=StoredSignIn(store)).connect() as client:
            assert await client.call("who") == "u-1"
    kept = store.load_credential(url)
    assert kept is not None and kept.tokens is not None
    # The token counts no more, and is renewed.
    store.store_credential(replace(kept, tokens=replace(kept.tokens, access_token="gone")))
    async with RemoteServer(socket, auth=StoredSignIn(store)).connect() as client:
        assert await client.call("who") == "u-1"
    store.store_credential(replace(kept, tokens=replace(kept.tokens, access_token="gone", refresh_token="gone")))
    with pytest.raises(CredentialsRequired, match="does not take this token"):
        async with RemoteServer(socket, auth=StoredSignIn(store)).connect():
            pass
    assert len(person.visits) == 1


async def test_a_bound_token_opens_a_websocket_with_a_proof_and_the_nonce_that_is_wanted() -> None:
    """A proof is for a GET of the http address, which is how a WebSocket is opened."""
    key = DpopProofKey()
    token = signed(claims(aud="notes", cnf={"jkt": compute_jwk_thumbprint(key.kept)}))
    verifier = JWT(key=pem(private_key()), audience="notes", issuer=ISSUER)
    with served(lambda url: Auth(verifier, resource=url, dpop=DPoP(required=True, nonce=True))) as url:
        socket, store = url.replace("http://", "ws://"), MemoryCredentialStore()
        known = Credential(url, url, IssuerMetadata(ISSUER), ClientRegistration("me"), key=key)
        store.store_credential(replace(known, tokens=Tokens(token, "DPoP")))
        async with RemoteServer(socket, auth=StoredSignIn(store)).connect() as client:
            assert await client.call("who") == "alice"
        with pytest.raises(PeerError, match="HTTP 401"):
            async with RemoteServer(socket, token=token).connect():
                pass
