"""A server below a path of another app: what clients are told, they find."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from defserve import Server
from defserve.auth import JWT, Auth
from tests.auth.issuer import ISSUER, claims, pem, private_key, signed
from tests.auth.proxied import proxy
from tests.auth.vendor import FakeVendor
from tests.auth.web import stateless
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SITE = "https://tools.example.com"


def jwt(url: str) -> Auth:
    return Auth(JWT(key=pem(private_key()), audience=url, issuer=ISSUER), scopes=["use"])


def mounted(path: str, auth: Auth) -> httpx2.AsyncClient:
    app: Any = Server("notes", auth=auth).asgi(allowed_hosts=["tools.example.com"])
    route = Route(path, app, methods=["POST"]) if path == "/mcp" else Mount(path, app)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(Starlette(routes=[route])), base_url=SITE)


async def refused(http: httpx2.AsyncClient, path: str) -> str:
    body, headers = stateless("tools/list")
    answer = await http.post(path, json=body, headers=headers)
    assert answer.status_code == 401, answer.text
    found = re.search(r'resource_metadata="([^"]+)"', answer.headers["www-authenticate"])
    assert found is not None
    return found[1]


@for_each_row("path", ["/tools", "/a/b"])
async def test_the_metadata_is_where_the_refusal_says(path: str) -> None:
    async with mounted(path, jwt(f"{SITE}{path}")) as http:
        url = await refused(http, f"{path}/")
        assert url == f"{SITE}{path}/.well-known/oauth-protected-resource"
        found = await http.get(url)
        assert found.status_code == 200 and found.json()["resource"] == f"{SITE}{path}"


async def test_an_authorization_server_of_ours_is_found_below_its_path_and_works_there() -> None:
    vendor = FakeVendor()
    auth = proxy(vendor, url=f"{SITE}/a/tools")
    async with mounted("/a/tools", auth) as http:
        assert (await http.get(await refused(http, "/a/tools/"))).json()["authorization_servers"] == [f"{SITE}/a"]
    # The issuer lies beside the endpoint, so whoever mounts a server gives it the folder.
    auth = proxy(vendor, url=f"{SITE}/a/tools/mcp")
    async with mounted("/a/tools", auth) as http:
        found = (await http.get("/a/tools/.well-known/openid-configuration")).json()
        assert found["issuer"] == f"{SITE}/a/tools" and found["token_endpoint"] == f"{SITE}/a/tools/token"
        about = {"redirect_uris": ["https://app.example/cb"]}
        assert (await http.post("/a/tools/register", json=about)).status_code == 201
        assert (await http.get("/a/tools/authorize")).status_code == 400


async def test_a_step_up_keeps_what_the_token_has() -> None:
    url = f"{SITE}/tools"
    server = Server("notes", auth=jwt(url))
    server.tool(scopes=["write"])(_write)
    app: Any = server.asgi(allowed_hosts=["tools.example.com"])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=SITE) as http:
        body, headers = stateless("tools/call", name="_write", arguments={})
        token = signed(claims(aud=url, scope="use offline_access mail"))
        answer = await http.post("/", json=body, headers={**headers, "authorization": f"Bearer {token}"})
        assert answer.status_code == 403
        assert 'scope="use write mail"' in answer.headers["www-authenticate"]


def _write() -> str:
    """Write."""
    return "written"
