from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from tests.at_address import fresh
from tests.auth.browsing import Visit
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET, FakeVendor, vendor_at_address
from tests.auth.web import stateless

pytestmark = pytest.mark.anyio


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVendor]:
    """The company's OpenID provider, on a port of this machine."""
    with vendor_at_address() as made:
        for name, value in {"ISSUER": made.issuer, "CLIENT_ID": CLIENT_ID, "CLIENT_SECRET": CLIENT_SECRET}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WRITERS", "alice@example.com")
        yield made


@pytest.fixture
async def visit(vendor: FakeVendor) -> AsyncIterator[Visit]:
    app: Any = fresh("cookbook.oauth").asgi()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8000") as http:
        yield Visit(http, vendor)


async def called(visit: Visit, tokens: dict[str, Any], tool: str, **arguments: str) -> httpx2.Response:
    body, headers = stateless("tools/call", name=tool, arguments=arguments)
    bearer = {"authorization": f"Bearer {tokens['access_token']}"}
    return await visit.http.post("/", json=body, headers={**headers, **bearer})


async def test_a_colleague_signs_in_and_once_more_to_write(visit: Visit):
    tokens = await visit.tokens()
    assert (await called(visit, tokens, "read_board")).json()["result"]["structuredContent"] == {"result": []}
    refused = await called(visit, tokens, "write_on_board", text="Cake!")
    assert refused.status_code == 403
    assert "board:write" in refused.headers["www-authenticate"]
    tokens = await visit.tokens(scope="board:write")
    assert (await called(visit, tokens, "write_on_board", text="Cake!")).status_code == 200
    assert ": Cake!" in (await called(visit, tokens, "read_board")).text


async def test_somebody_of_another_company_does_not_get_in(visit: Visit, vendor: FakeVendor):
    vendor.user = {"sub": "u-2", "email": "eve@example.org", "email_verified": True}
    with pytest.raises(AssertionError, match="access_denied"):
        await visit.tokens()


async def test_a_client_without_a_token_is_told_where_to_sign_in(visit: Visit):
    refused = await called(visit, {"access_token": "none"}, "read_board")
    assert refused.status_code == 401
    assert "resource_metadata" in refused.headers["www-authenticate"]
