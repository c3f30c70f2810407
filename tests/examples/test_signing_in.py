from __future__ import annotations

import importlib
import json
from typing import Any

import httpx2
import pytest

from defserve.auth.issuers import HttpRequest, HttpResponse
from examples import signing_in
from tests.auth.browsing import Visit
from tests.auth.web import stateless

pytestmark = pytest.mark.anyio


class GitHub:
    """Signs octocat in."""

    def sign_in(self, url: str) -> str:
        assert url.startswith("https://github.com/login/oauth/authorize?")
        return f"http://localhost:8000/callback?code=good&state={httpx2.URL(url).params['state']}"

    async def send(self, request: HttpRequest) -> HttpResponse:
        said = {"id": 1, "login": "octocat"} if request.url.endswith("/user") else {"access_token": "gho_x"}
        return HttpResponse(200, {}, json.dumps(said).encode())


async def called(http: httpx2.AsyncClient, tokens: dict[str, Any], tool: str, **arguments: str) -> httpx2.Response:
    body, headers = stateless("tools/call", name=tool, arguments=arguments)
    return await http.post("/", json=body, headers={**headers, "authorization": f"Bearer {tokens['access_token']}"})


async def test_a_user_of_github_signs_in_and_then_once_more_to_write(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GITHUB_USERS", "octocat")
    monkeypatch.setenv("GITHUB_WRITERS", "octocat")
    importlib.reload(signing_in)
    github = GitHub()
    monkeypatch.setattr(signing_in.auth._tokens._vendor.login, "_send", github.send)  # type: ignore[union-attr]
    app: Any = signing_in.server.asgi()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8000") as http:
        visit = Visit(http, github)
        tokens = await visit.tokens()
        assert (await called(http, tokens, "read")).json()["result"]["structuredContent"] == {"result": []}
        assert (await called(http, tokens, "write", text="milk")).status_code == 403
        tokens = await visit.tokens(scope="notes:write")
        assert (await called(http, tokens, "write", text="milk")).status_code == 200
        assert "milk" in (await called(http, tokens, "read")).text
