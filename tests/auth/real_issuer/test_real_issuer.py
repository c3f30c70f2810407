"""npm's `oidc-provider` as the issuer: behind `OIDC`, `Introspection`, `DPoP`, `OAuthProxy`; and official clients."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from defserve.auth import OIDC, Auth, DPoP, Introspection, OAuthProxy, Vendor
from defserve.auth.dpop import compute_jwk_thumbprint
from tests.auth.browsing import REDIRECT, browse
from tests.auth.issuer import raw
from tests.auth.proofs import KEY, PUBLIC, proof
from tests.auth.served import served
from tests.auth.web import stateless
from tests.conformance import suite_install
from tests.peers.catalogue import ISSUER, PY_1, PY_2, TS_1, TS_2
from tests.peers.packages import NotInstalled, Package
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
# The newest of each language, and older ones.
CLIENTS = [
    pytest.param(package, id=f"{package.name}-{package.version}", marks=marks)
    for package, marks in (
        (PY_1, pytest.mark.slow),
        (PY_2, ()),
        (TS_1, pytest.mark.slow),
        (TS_2, ()),
    )
]
OPAQUE = "https://opaque.example/mcp"


def installed(package: Package) -> Package:
    try:
        package.install()
    except NotInstalled as error:
        pytest.skip(f"{package.name} cannot be installed: {error}")
    return package


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of the provider, in a process of its own."""
    folder = installed(ISSUER).folder
    command = [str(suite_install.node()), str(HERE / "provider.mjs"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as provider:
        assert provider.stdout is not None
        try:
            line = provider.stdout.readline().strip()
            assert line.startswith("http://127.0.0.1:"), line
            yield line
        finally:
            provider.kill()


class SignIn:
    """A client of the provider itself, and what it got."""

    def __init__(self, issuer: str, resource: str) -> None:
        self.issuer, self.resource, self.verifier = issuer, resource, "v" * 64
        about = {
            "redirect_uris": [REDIRECT],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
            "grant_types": ["authorization_code", "refresh_token"],
        }
        self.id = self.post("/reg", json=about).json()["client_id"]

    def post(self, path: str, **sending: Any) -> httpx2.Response:
        return httpx2.post(f"{self.issuer}{path}", trust_env=False, **sending)

    def tokens(self, scope: str, *, is_bound: bool = False) -> dict[str, Any]:
        challenge = urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "scope": scope,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": self.resource,
            "state": "s",
        }
        back = asyncio.run(browse(f"{self.issuer}/auth?{urlencode(asked)}", REDIRECT))
        form = {
            "grant_type": "authorization_code",
            "code": dict(parse_qsl(urlsplit(back).query))["code"],
            "redirect_uri": REDIRECT,
            "client_id": self.id,
            "code_verifier": self.verifier,
            "resource": self.resource,
        }
        place = f"{self.issuer}/token"
        headers = {"dpop": token_proof(place)} if is_bound else {}
        answer = self.post("/token", data=form, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()


def token_proof(url: str) -> str:
    """A proof for the token endpoint: it has no token to name yet."""
    said = {"jti": str(uuid.uuid4()), "htm": "POST", "htu": url, "iat": int(time.time())}
    return raw({"typ": "dpop+jwt", "alg": "ES256", "jwk": PUBLIC}, said, key=KEY)


def call(url: str, authorization: str, tool: str = "who", **more: str) -> httpx2.Response:
    body, headers = stateless("tools/call", name=tool, arguments={})
    return httpx2.post(url, json=body, headers={**headers, "authorization": authorization, **more}, trust_env=False)


def text_of(answer: httpx2.Response) -> str:
    return answer.json()["result"]["content"][0]["text"]


def test_signed_tokens_are_accepted_by_discovery_and_a_tool_asks_for_more(issuer: str) -> None:
    with served(lambda url: Auth(OIDC(issuer, audience=url), scopes=["notes:read"])) as url:
        token = SignIn(issuer, url).tokens("notes:read")["access_token"]
        assert text_of(call(url, f"Bearer {token}")) == "alice"
        refused = call(url, f"Bearer {token}", "write")
        assert refused.status_code == 403 and 'scope="notes:read notes:write"' in refused.headers["www-authenticate"]
        more = SignIn(issuer, url).tokens("notes:read notes:write")["access_token"]
        assert text_of(call(url, f"Bearer {more}", "write")) == "written"
        elsewhere = SignIn(issuer, "https://other.example/mcp").tokens("notes:read")["access_token"]
        assert call(url, f"Bearer {elsewhere}").status_code == 401


def test_opaque_tokens_are_asked_about_and_end_when_they_are_revoked(issuer: str) -> None:
    def make(url: str) -> Auth:
        asking = Introspection(
            f"{issuer}/token/introspection",
            client_id="tools",
            client_secret="tools-secret",
            audience=OPAQUE,
            issuer=issuer,
        )
        return Auth(asking, resource=url)

    with served(make) as url:
        client = SignIn(issuer, OPAQUE)
        token = client.tokens("notes:read")["access_token"]
        assert "." not in token and text_of(call(url, f"Bearer {token}")) == "alice"
        revoked = client.post("/token/revocation", data={"token": token, "client_id": client.id})
        assert revoked.status_code == 200
        wait_until(lambda: call(url, f"Bearer {token}").status_code == 401)


def test_bound_tokens_are_accepted_with_their_proof_only(issuer: str) -> None:
    with served(lambda url: Auth(OIDC(issuer, audience=url), dpop=DPoP())) as url:
        found = SignIn(issuer, url).tokens("notes:read", is_bound=True)
        token = found["access_token"]
        assert found["token_type"] == "DPoP" and compute_jwk_thumbprint(PUBLIC)
        good = proof(token, url)
        assert text_of(call(url, f"DPoP {token}", dpop=good)) == "alice"
        assert call(url, f"DPoP {token}", dpop=good).status_code == 401
        assert call(url, f"Bearer {token}").status_code == 401


def in_front(issuer: str, url: str) -> OAuthProxy:
    vendor = Vendor("the provider", issuer, scopes=("openid",), method="basic")
    return OAuthProxy(vendor, client_id="our-app", client_secret="our-app-secret", url=url, allow=["alice"])


def made(issuer: str, kind: str, url: str) -> Auth:
    return in_front(issuer, url) if kind == "proxy" else Auth(OIDC(issuer, audience=url), scopes=["notes:read"])


@pytest.mark.parametrize("kind", ["proxy", "issuer"])
@pytest.mark.parametrize("package", CLIENTS)
def test_an_official_client_signs_in(issuer: str, package: Package, kind: str) -> None:
    folder = installed(package).folder
    script = "python_client.py" if package.index == "pip" else "typescript_client.cjs"
    given = [str(folder)] if package.index == "npm" else []
    with served(lambda url: made(issuer, kind, url)) as url:
        command = [str(package.program), str(HERE / script), *given, url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as client:
            assert client.stdin is not None and client.stdout is not None and client.stderr is not None
            said: list[str] = []
            try:
                for line in client.stdout:
                    said.append(line)
                    if line.startswith("OPEN "):
                        client.stdin.write(asyncio.run(browse(line.split()[1], REDIRECT)) + "\n")
                        client.stdin.flush()
                assert said[-1:] == ["CALLED alice\n"], (said, client.stderr.read())
            finally:
                client.kill()
