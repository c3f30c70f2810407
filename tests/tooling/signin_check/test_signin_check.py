from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve.auth import OAuthProxy
from defserve.auth.issuers import HttpRequest, HttpResponse
from defserve.cli.commands.doctor import main
from defserve.tooling.signin_check import Step, check_sign_in
from tests.auth.issuer import jwk, private_key
from tests.auth.served import served
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET
from tests.rows import for_each_row

URL, ISSUER = "https://tools.example/mcp", "https://login.example"
METADATA = "https://tools.example/.well-known/oauth-protected-resource/mcp"
PUBLISHED = f"{ISSUER}/.well-known/oauth-authorization-server"
KEYS = f"{ISSUER}/keys"

RESOURCE: dict[str, Any] = {"resource": URL, "authorization_servers": [ISSUER], "scopes_supported": ["read"]}
SERVER: dict[str, Any] = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "client_id_metadata_document_supported": True,
    "response_types_supported": ["code"],
    "grant_types_supported": ["authorization_code", "refresh_token"],
    "code_challenge_methods_supported": ["S256"],
    "token_endpoint_auth_methods_supported": ["none"],
    "authorization_response_iss_parameter_supported": True,
    "scopes_supported": ["read"],
    "jwks_uri": KEYS,
}


class Web:
    """A good server and its issuer, of which a test changes what it likes."""

    def __init__(self, **changed: Any) -> None:
        self.status = changed.pop("status", 401)
        self.challenge = changed.pop("challenge", f'Bearer scope="read", resource_metadata="{METADATA}"')
        resource = {**RESOURCE, **changed.pop("resource", {})}
        server = {**SERVER, **changed.pop("server", {})}
        keys = {"keys": [jwk(private_key(), "ES256", kid="a")]}
        self.documents: dict[str, Any] = {METADATA: resource, PUBLISHED: server, KEYS: keys, **changed.pop("at", {})}

    async def ask(self, request: HttpRequest) -> HttpResponse:
        if request.url == URL:
            headers = {"www-authenticate": self.challenge} if self.challenge else {}
            return HttpResponse(self.status, headers, b"")
        found = self.documents.get(request.url)
        if isinstance(found, Exception):
            raise found
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        return HttpResponse(404 if found is None else 200, {}, body)


async def steps(web: Web) -> list[Step]:
    return [step async for step in check_sign_in(URL, web.ask)]


def found(web: Web) -> dict[str, Step]:
    return {step.name: step for step in asyncio.run(steps(web))}


def test_a_server_at_which_every_client_can_sign_in_has_nothing_to_fix() -> None:
    assert {step.state for step in found(Web()).values()} == {"ok"}
    assert len(found(Web())) == 17


ELSEWHERE = "https://tools.example/.well-known/oauth-protected-resource"
OPENID = f"{ISSUER}/.well-known/openid-configuration"


@for_each_row(
    "changed, step, state, words",
    [
        ({"status": 404}, "asks for a token", "broken", "404"),
        ({"status": 200}, "asks for a token", "ok", "nobody has to sign in"),
        ({"challenge": ""}, "asks for a token", "missing", "have to guess"),
        ({"challenge": "Bearer"}, "says where to look", "missing", "usual paths"),
        ({"challenge": "Bearer", "at": {METADATA: None, ELSEWHERE: RESOURCE}}, "resource metadata", "ok", ELSEWHERE),
        ({"at": {METADATA: None}}, "resource metadata", "missing", "status 404"),
        ({"at": {METADATA: b"[]"}}, "resource metadata", "missing", "not a JSON object"),
        ({"at": {METADATA: OSError("away")}}, "resource metadata", "missing", "away"),
        ({"challenge": 'Bearer resource_metadata="file:///x"'}, "resource metadata", "ok", METADATA),
        ({"resource": {"resource": "https://tools.example"}}, "names itself", "missing", "compare exactly"),
        ({"resource": {"resource": "https://tools.example/other"}}, "names itself", "broken", "refuse to sign in"),
        ({"resource": {"resource": 7}}, "names itself", "broken", "refuse to sign in"),
        ({"challenge": f"Basic x, bearer resource_metadata={METADATA!r}"}, "says where to look", "missing", "usual"),
        (
            {"challenge": f'Basic realm="resource_metadata", Bearer resource_metadata="{METADATA}"'},
            "says where to look",
            "ok",
            METADATA,
        ),
        ({"resource": {"resource": f"{URL}/"}}, "names itself", "missing", "compare exactly"),
        ({"resource": {"authorization_servers": []}}, "names its issuers", "broken", "do not know where"),
        ({"resource": {"authorization_servers": ["http://login.example"]}}, "metadata", "broken", "only https"),
        ({"at": {PUBLISHED: None}}, "metadata", "broken", "openid-configuration"),
        ({"at": {PUBLISHED: None, OPENID: SERVER}}, "metadata", "ok", OPENID),
        ({"at": {PUBLISHED: OSError("away")}}, "metadata", "broken", "away"),
        ({"server": {"issuer": f"{ISSUER}/"}}, "says who it is", "broken", "compare the texts"),
        ({"server": {"token_endpoint": "http://login.example/t"}}, "endpoints", "broken", "only https"),
        ({"server": {"response_types_supported": ["token"]}}, "code flow", "broken", "by code"),
        ({"server": {"grant_types_supported": ["authorization_code"]}}, "code flow", "missing", "refresh"),
        ({"server": {"code_challenge_methods_supported": ["plain"]}}, "PKCE", "broken", "must refuse"),
        ({"server": {"registration_endpoint": None}}, "registration", "missing", "older clients"),
        ({"server": {"client_id_metadata_document_supported": False}}, "registration", "ok", "dynamic"),
        (
            {"server": {"client_id_metadata_document_supported": None, "registration_endpoint": None}},
            "registration",
            "missing",
            "somebody gives it",
        ),
        ({"server": {"token_endpoint_auth_methods_supported": None}}, "clients without a secret", "missing", "basic"),
        ({"server": {"token_endpoint_auth_methods_supported": ["x"]}}, "clients without a secret", "broken", "x"),
        (
            {"server": {"authorization_response_iss_parameter_supported": 0}},
            "names itself in answers",
            "missing",
            "iss",
        ),
        ({"server": {"scopes_supported": ["write"]}}, "scopes", "missing", "read"),
        ({"server": {"protected_resources": ["https://x.example"]}}, "resource", "missing", "do not name"),
        ({"server": {"jwks_uri": "http://login.example/keys"}}, "keys", "broken", "only https"),
        ({"at": {KEYS: {"keys": []}}}, "keys", "ok", "empty set"),
        ({"at": {KEYS: b"{}"}}, "keys", "broken", "not a key set"),
    ],
    ids=range(36),
)
def test_what_a_client_needs_is_said(changed: Any, step: str, state: str, words: str) -> None:
    met = found(Web(**changed))[step]
    assert met.state == state and words in met.about
    assert met.state == "ok" or met.fix, "it says how to fix it"


def test_without_metadata_the_server_itself_is_taken_for_the_issuer_as_old_clients_do() -> None:
    own = "https://tools.example/.well-known/oauth-authorization-server"
    there = {METADATA: None, own: {**SERVER, "issuer": "https://tools.example"}}
    assert found(Web(at=there))["says who it is"].state == "ok"


@for_each_row("url", ["http://tools.example/mcp", "tools.example", "file:///etc/passwd"])
def test_a_url_that_is_not_safe_is_not_asked(url: str) -> None:
    async def first() -> Step:
        return await anext(check_sign_in(url, Web().ask))

    assert asyncio.run(first()).state == "broken"


def test_the_command_checks_a_real_server(capsys: pytest.CaptureFixture[str]) -> None:
    def make(url: str) -> OAuthProxy:
        given = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
        return OAuthProxy("oidc", issuer="https://vendor.example", url=url, allow="*", **given)

    with served(make) as url:
        assert main(["--auth", url]) == 0
        shown = capsys.readouterr().out
        assert "S256" in shown and "fix:" not in shown
        assert main(["--auth", f"{url}x", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)[0]["about"].startswith("status 404")
    assert main(["--auth", url]) == 1
