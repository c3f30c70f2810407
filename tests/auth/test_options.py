from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, dangerous
from defserve.auth import ApiKeys, DPoP, OAuthProxy
from defserve.auth.auth_options import Auth, list_operator_warnings, parse_auth_option
from defserve.auth.bearer_tokens import StaticTokens
from defserve.auth.dpop import ProvedKey
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.oauth import UNAVAILABLE_DENIAL, AuthDenial
from defserve.auth.principals import Principal
from defserve.auth.signed_tokens import JWT, DeniedTokens
from defserve.errors import UsageError
from defserve.server.web import announce_to_operator
from defserve.stores.store import OAUTH_GRANT_SPACES
from tests.asgi import living
from tests.auth.issuer import AUDIENCE, ISSUER, pem, private_key, signed
from tests.rows import for_each_row

TOKENS = StaticTokens({"t-alice": {"principal": "alice", "scopes": ["read"]}, "t-bob": "bob"})
METADATA = 'resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp"'
AUTH = Auth(TOKENS, resource=AUDIENCE, authorization_servers=[ISSUER], scopes=["read"])


def tried(auth: Auth, *authorization: bytes) -> Principal | AuthDenial:
    return asyncio.run(auth.authenticate(authorization))


def test_a_good_token_lets_its_principal_in() -> None:
    assert tried(AUTH, b"Bearer t-alice") == Principal("alice", frozenset({"read"}))


@for_each_row(
    ("authorization", "status", "said"),
    [
        ((), 401, f'Bearer scope="read", {METADATA}'),
        ((b"Basic YTpi",), 401, f'Bearer scope="read", {METADATA}'),
        ((b"Bearer",), 400, f'Bearer error="invalid_request", scope="read", {METADATA}'),
        ((b"Bearer t-alice", b"Bearer t-bob"), 400, f'Bearer error="invalid_request", scope="read", {METADATA}'),
        ((b"Bearer nobody",), 401, f'Bearer error="invalid_token", scope="read", {METADATA}'),
        ((b"Bearer t-bob",), 403, f'Bearer error="insufficient_scope", scope="read", {METADATA}'),
    ],
)
def test_anybody_else_is_told_what_is_missing(authorization: tuple[bytes, ...], status: int, said: str) -> None:
    denied = tried(AUTH, *authorization)
    assert isinstance(denied, AuthDenial) and (denied.status, denied.challenge) == (status, said)
    # Who needs another token is told where to get one; who needs a scope, which one.
    assert denied.text.endswith(": read" if status == 403 else "says who issues tokens")


def test_what_an_operation_needs_is_asked_for_with_what_all_need() -> None:
    denied = AUTH.make_denial("insufficient_scope", needs=["read", "write"])
    assert denied.challenge == f'Bearer error="insufficient_scope", scope="read write", {METADATA}'
    assert denied.text.endswith(": read write")


def test_without_authorization_servers_there_is_no_metadata_to_point_to() -> None:
    auth = Auth(TOKENS, resource=AUDIENCE)
    assert auth.resource is None
    denied = tried(auth)
    assert isinstance(denied, AuthDenial) and denied.challenge == "Bearer"
    assert denied.text.endswith("Authorization: Bearer <token>")


def test_a_scope_includes_what_it_implies_through_any_number_of_steps() -> None:
    tokens = StaticTokens({"t": {"principal": "root", "scopes": ["admin"]}})
    auth = Auth(tokens, scopes=["read"], implies={"admin": ["write", "admin"], "write": ["read", "admin"]})
    root = tried(auth, b"Bearer t")
    assert isinstance(root, Principal) and root.scopes == {"admin", "write", "read"}


def test_a_verifier_alone_will_do() -> None:
    auth = parse_auth_option(TOKENS)
    assert isinstance(tried(auth, b"Bearer t-bob"), Principal)
    assert parse_auth_option(auth) is auth


def test_a_jwt_verifier_says_the_resource_and_the_issuer_itself() -> None:
    auth = parse_auth_option(JWT(key=pem(private_key()), audience=["api://tools", AUDIENCE], issuer=ISSUER))
    assert auth.resource is not None
    assert auth.resource.document()["resource"] == AUDIENCE
    assert auth.resource.document()["authorization_servers"] == [ISSUER]
    assert isinstance(tried(auth, b"Bearer " + signed().encode()), Principal)


def test_a_jwt_verifier_of_names_that_are_no_urls_publishes_nothing() -> None:
    assert parse_auth_option(JWT(key=pem(private_key()), audience="tools", issuer="login")).resource is None


class SyncVerifier:
    def verify(self, token: str) -> Principal | None:
        return None


@for_each_row("value", [None, "token", {"token": "alice"}, StaticTokens, SyncVerifier(), object()])
def test_what_cannot_verify_tokens_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot verify tokens"):
        parse_auth_option(value)


@for_each_row(
    ("options", "problem"),
    [
        ({"authorization_servers": [ISSUER]}, "without a resource"),
        ({"resource": "http://tools.example/mcp"}, "only https"),
        ({"resource": AUDIENCE + "/", "authorization_servers": [ISSUER]}, "slash"),
        ({"scopes": ['re"ad']}, "is not a scope"),
        ({"implies": {"admin": ["re ad"]}}, "is not a scope"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Auth(TOKENS, **options)


def test_the_package_offers_its_names_when_they_are_used() -> None:
    import defserve.auth

    assert [getattr(defserve.auth, name).__name__ for name in defserve.auth.__all__] == defserve.auth.__all__
    with pytest.raises(AttributeError, match="nothing"):
        _ = defserve.auth.nothing


def test_scopes_may_give_permissions_and_then_a_token_is_good_for_these_tools_only() -> None:
    tokens = StaticTokens({"a": {"principal": "alice", "scopes": ["notes:read"]}, "b": "bob"})
    auth = Auth(tokens, permissions={"notes:read": ["ToolInvoke(read)", "ToolRead(write)"]})
    alice, bob = tried(auth, b"Bearer a"), tried(auth, b"Bearer b")
    assert isinstance(alice, Principal) and isinstance(bob, Principal)
    assert alice.may_invoke("read") and alice.may_read("write") and not alice.may_invoke("write")
    assert not bob.may_read("read") and alice.credential and alice.scopes >= {"notes:read"}
    with pytest.raises(UsageError, match="not a permission"):
        Auth(tokens, permissions={"notes:read": ["Everything"]})


@pytest.mark.anyio
async def test_a_token_whose_issuer_is_away_is_neither_good_nor_bad() -> None:
    class Away:
        async def verify(self, token: str) -> Principal | None:
            raise IssuerUnavailable("the issuer is away")

    with pytest.raises(IssuerUnavailable):
        await Auth(Away()).still_holds([b"Bearer t"])
    assert (await Auth(Away()).authenticate([b"Bearer t"])) is UNAVAILABLE_DENIAL


# -- What an operator is told before callers find out.


async def list_problems(server: Server, **options: bool) -> list[str]:
    assert server.auth is not None
    return [problem for problem, _ in await list_operator_warnings(server.auth, **options)]


@pytest.mark.anyio
async def test_who_keeps_sign_ins_in_memory_is_told_what_a_restart_costs(tmp_path: Path):
    given: dict[str, Any] = {"client_id": "a", "client_secret": "b", "url": "http://127.0.0.1:8000/mcp", "allow": "*"}
    (problem,) = await list_problems(Server("s", auth=OAuthProxy("github", **given)))
    assert "everybody has to sign in again" in problem
    kept = OAuthProxy("github", **given, store=f"sqlite:///{tmp_path}/oauth.db", secret="0123456789abcdef" * 2)
    assert await list_problems(Server("s", auth=kept)) == []
    again = OAuthProxy("github", **given, store=f"sqlite:///{tmp_path}/b.db", secret="01234567" * 4, dpop=DPoP())
    assert await list_problems(Server("s", auth=again)) == [], "proofs that only this process remembers are no sign-ins"


@pytest.mark.anyio
async def test_who_has_made_no_keys_yet_is_told_how(tmp_path: Path):
    file = tmp_path / "nokeys.json"
    keys = ApiKeys(file, pepper="0123456789abcdef")
    server = Server("s", auth=[keys])
    assert server.auth is not None
    ((problem, fix),) = await list_operator_warnings(server.auth)
    assert problem == f"there are no API keys yet in {file}, so no caller has one"
    assert fix.startswith("make one: defserve keys create NAME --allow ") and fix.endswith(f" --store {file}")
    await keys.create("ann", permissions=["ToolInvoke(*)"])
    assert await list_problems(server) == []


@pytest.mark.anyio
async def test_a_store_of_keys_is_only_opened_where_the_server_runs(tmp_path: Path):
    keys = ApiKeys(f"sqlite:///{tmp_path}/keys.db", pepper="0123456789abcdef")
    server = Server("s", auth=keys)
    assert await list_problems(server, opens_stores=False) == [] and not os.listdir(tmp_path)
    assert await list_problems(server) == ["there are no API keys yet, so no caller has one"]
    await keys.close()


@for_each_row("part", ["keys", "denied tokens", "proofs", "sign-ins"])
@pytest.mark.anyio
async def test_a_store_that_was_opened_for_callers_is_closed_when_serving_ends(part: str, tmp_path: Path):
    address, threads = f"sqlite:///{tmp_path}/kept.db", list_store_threads()
    keys, denied, proofs = ApiKeys(address, pepper="0123456789abcdef"), DeniedTokens(address), DPoP(address)
    auths: dict[str, Any] = {
        "keys": Auth([keys]),
        "denied tokens": Auth([JWT(key=pem(private_key()), audience=AUDIENCE, issuer=ISSUER, denied=denied), keys]),
        "proofs": Auth(TOKENS, resource=AUDIENCE, dpop=proofs),
        "sign-ins": OAuthProxy(
            "github", url=AUDIENCE, client_id="c", client_secret="s", store=address, secret="k" * 32, allow="everyone"
        ),
    }
    async with living(Server("s", auth=auths[part]).asgi()):
        match part:
            case "keys":
                await keys.create("ann")
            case "denied tokens":
                await denied.deny("7", until=time.time() + 60)
                await keys.create("ann")
            case "proofs":
                await proofs.spend_proof(ProvedKey("a key", "a proof"))
            case _:
                await auths[part]._store.get(OAUTH_GRANT_SPACES.make_space("nobody"), ["record"])
        assert list_store_threads() > threads
    assert list_store_threads() == threads


def list_store_threads() -> set[threading.Thread]:
    """Those of asyncio's own pool are not closed with a store."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio")}


@pytest.mark.anyio
async def test_the_start_says_so_before_it_names_the_dangerous_tools(tmp_path: Path):
    server = Server("s", auth=ApiKeys(tmp_path / "keys.json"))

    @server.tool
    @dangerous
    def wipe() -> None: ...

    said: list[str] = []
    await announce_to_operator(server.composition, server.auth, said.append)
    assert [line.partition(":")[0] for line in said[:3]] == ["warning", "  fix", "dangerous tools"]
