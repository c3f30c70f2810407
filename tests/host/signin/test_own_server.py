"""Our client signs in to a server of ours, behind `OAuthProxy`: both sides of the same rules, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from defserve.auth import OAuthProxy
from defserve.host import Remote, SignIn
from defserve.host.signin.keeping.memory import MemoryCredentialStore
from tests.auth.browsing import REDIRECT, browse
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
            )

        with served(proxy) as address:
            yield address


async def test_a_person_signs_in_and_again_for_a_tool_that_needs_more(url: str) -> None:
    person, store = Person(), MemoryCredentialStore()
    async with Remote(url, auth=SignIn(redirect=person, store=store)).connect() as client:
        assert await client.call("who")
        assert len(person.visits) == 1
        assert await client.call("write") == "written"
    assert len(person.visits) == 2 and "notes%3Awrite" in person.visits[1]
    async with Remote(url, auth=SignIn(redirect=person, store=store)).connect() as client:
        assert await client.call("write") == "written"
    assert len(person.visits) == 2
