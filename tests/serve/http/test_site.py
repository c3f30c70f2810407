"""What the pages of `Auth.site` are told about a request."""

from __future__ import annotations

from typing import Any

import pytest

from defserve.auth.proxy.site_messages import SiteRequest, SiteResponse
from defserve.auth.rates import FailedTokenCounts
from defserve.serve.http.other_endpoints import answer_site_request
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Asked:
    """A site, a gate that lets everyone in, and an exchange that is never read, in one."""

    def __init__(self) -> None:
        self.requests: list[SiteRequest] = []
        self.headers: dict[str, str] = {}
        self.is_slow = self.gone = False
        self.refused: Any = None

    async def answer_request(self, request: SiteRequest) -> SiteResponse:
        self.requests.append(request)
        return SiteResponse(200)

    def check(self, *given: Any) -> None: ...
    def read_head(self) -> None: ...
    async def read_body(self, limit: int, seconds: float) -> bytes | None:
        if self.is_slow:
            raise TimeoutError
        return None

    async def refuse(self, status: int, text: str, headers: Any) -> None:
        self.refused = status, text, headers

    async def respond(self, *given: Any, **named: Any) -> None: ...


@for_each_row(
    ("client", "address"),
    [
        (None, ""),
        (("192.0.2.1", 1), "192.0.2.1"),
        (("2001:db8::1", 1), "2001:db8::/64"),
        (("2001:db8::ffff:1", 1), "2001:db8::/64"),
    ],
)
async def test_all_addresses_of_a_machine_are_one_to_the_site(client: tuple[str, int] | None, address: str):
    asked: Any = Asked()
    scope: Any = {"method": "GET", "headers": [], "client": client}
    await answer_site_request(asked, "/authorize", asked, scope, asked, 1.0, FailedTokenCounts(trusted_proxy=False))
    assert [request.address for request in asked.requests] == [address]


@for_each_row(("is_slow", "status", "why"), [(True, 408, "in time"), (False, 413, "larger")])
async def test_a_body_that_comes_too_slowly_is_not_called_too_large(is_slow: bool, status: int, why: str):
    asked: Any = Asked()
    asked.is_slow = is_slow
    scope: Any = {"method": "POST", "headers": [], "client": None}
    await answer_site_request(asked, "/token", asked, scope, asked, 1.0, FailedTokenCounts(trusted_proxy=False))
    assert asked.refused[0] == status and why in asked.refused[1] and not asked.requests
    assert (b"connection", b"close") in asked.refused[2]
