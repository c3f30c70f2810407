from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.auth import JWT, Auth, DPoP
from defserve.auth.bearer_tokens import DpopProofRequest
from defserve.auth.dpop import same_place
from defserve.errors import UsageError
from defserve.stores.identity import ServerIdentity
from defserve.stores.store import MemoryStore
from tests.auth.issuer import AUDIENCE, ISSUER, claims, jwk, pem, private_key, signed
from tests.auth.proofs import KEY, PUBLIC, THUMBPRINT, bound_token, proof
from tests.auth.web import client, stateless
from tests.listening import listening
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

URL = "https://tools.example.com/mcp"
TOKEN = bound_token()
OTHER = private_key("ES256", "thief")


async def checked(dpop: DPoP, *proofs: str, method: str = "POST", url: str = URL) -> str:
    return await dpop.check(DpopProofRequest(method, url, [one.encode() for one in proofs]), TOKEN, THUMBPRINT)


async def test_a_proof_is_good_once() -> None:
    dpop, one = DPoP(), proof(TOKEN, URL)
    assert await checked(dpop, one) == ""
    assert await checked(dpop, one) == "invalid_dpop_proof"
    assert await checked(dpop, proof(TOKEN, URL)) == ""


async def test_processes_that_share_a_store_accept_a_proof_once(tmp_path: Path) -> None:
    address, one = f"sqlite:///{tmp_path}/dpop.db", proof(TOKEN, URL)
    processes = [DPoP(address) for _ in range(3)]
    for process in processes:
        process.bind_server(ServerIdentity("name", "notes"))
    assert [await checked(process, one) for process in processes] == ["", "invalid_dpop_proof", "invalid_dpop_proof"]
    for process in processes:
        await process.close()


async def test_a_store_that_fails_lets_nobody_in() -> None:
    class Broken(MemoryStore):
        async def change(self, change: Any) -> bool:
            from defserve.stores.store import StoreUnavailable

            raise StoreUnavailable("gone")

    assert await checked(DPoP(Broken()), proof(TOKEN, URL)) == "invalid_dpop_proof"


NOW = int(time.time())
BAD: list[tuple[str, ...]] = [
    (),
    (proof(TOKEN, URL), proof(TOKEN, URL)),
    (proof(TOKEN, "https://evil.example/mcp"),),
    (proof(TOKEN, f"{URL}/other"),),
    (proof(TOKEN, "https://u:p@tools.example.com/mcp"),),
    (proof(TOKEN, URL, method="GET"),),
    (proof(TOKEN, URL, method="post"),),
    (proof("another-token", URL),),
    (proof(TOKEN, URL, ath=None),),
    (proof(TOKEN, URL, jti=None),),
    (proof(TOKEN, URL, jti=""),),
    (proof(TOKEN, URL, jti="x" * 257),),
    (proof(TOKEN, URL, jti=7),),
    (proof(TOKEN, URL, iat=NOW - 120),),
    (proof(TOKEN, URL, iat=NOW + 3600),),
    (proof(TOKEN, URL, iat=str(NOW)),),
    (proof(TOKEN, URL, iat=True),),
    (proof(TOKEN, URL, iat=None),),
    (proof(TOKEN, URL, htu=7),),
    (proof(TOKEN, URL, header={"typ": "JWT"}),),
    (proof(TOKEN, URL, header={"alg": "none"}),),
    (proof(TOKEN, URL, header={"alg": "HS256"}),),
    (proof(TOKEN, URL, header={"crit": ["x"]}),),
    (proof(TOKEN, URL, header={"jwk": None}),),
    (proof(TOKEN, URL, header={"jwk": {"kty": "oct", "k": "AAAA"}}),),
    (proof(TOKEN, URL, header={"jwk": {**PUBLIC, "d": "AAAA"}}),),
    (proof(TOKEN, URL, key=OTHER),),
    (proof(TOKEN, URL, key=OTHER, header={"jwk": jwk(OTHER, "ES256")}),),
    ("a.b.c",),
    ("é",),
    ("x" * 9000,),
]


@for_each_row("proofs", BAD, ids=range(len(BAD)))
async def test_any_other_proof_is_refused(proofs: tuple[str, ...]) -> None:
    assert await checked(DPoP(), *proofs) == "invalid_dpop_proof"


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else(raw: bytes) -> None:
    assert asyncio.run(DPoP().check(DpopProofRequest("POST", URL, [raw]), TOKEN, THUMBPRINT)) == "invalid_dpop_proof"


async def test_a_nonce_is_asked_for_and_accepted_by_every_process_of_one_secret() -> None:
    one, other = DPoP(nonce=True, secret="s" * 32), DPoP(nonce=True, secret="s" * 32)
    assert await checked(one, proof(TOKEN, URL)) == "use_dpop_nonce"
    assert await checked(other, proof(TOKEN, URL, nonce=one.new_nonce())) == ""
    for bad in ("x" * 32, "", 7, DPoP(nonce=True, secret="t" * 32).new_nonce()):
        assert await checked(one, proof(TOKEN, URL, nonce=bad)) == "use_dpop_nonce"
    late = DPoP(nonce=True, secret="s" * 32, clock=lambda: time.time() + 61)
    assert await checked(late, proof(TOKEN, URL, nonce=one.new_nonce(), iat=int(time.time()) + 61)) == "use_dpop_nonce"


@for_each_row(
    "one, other, same",
    [
        ("https://a.example/x", "HTTPS://A.example:443/x", True),
        ("https://a.example/x?q#f", "https://a.example/x", True),
        ("https://a.example", "https://a.example/", True),
        ("https://a.example/x", "http://a.example/x", False),
        ("https://a.example/x", "https://a.example:8443/x", False),
        ("https://a.example/x", "https://a.example/X", False),
    ],
)
def test_urls_are_compared_without_query_and_fragment(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same


# -------------------------------------------------------------------------------------------------------- over HTTP


def served(**options: Any) -> httpx2.AsyncClient:
    verifier = JWT(key=pem(private_key()), audience=AUDIENCE, issuer=ISSUER)
    server = Server("s", auth=Auth(verifier, resource=URL, dpop=DPoP(**options) if options.pop("on", True) else None))
    return client(server)


async def asked(http: httpx2.AsyncClient, authorization: str, *proofs: str) -> httpx2.Response:
    body, headers = stateless("tools/list")
    given = [*headers.items(), ("authorization", authorization), *(("dpop", one) for one in proofs)]
    return await http.post("/", json=body, headers=given)


async def test_a_bound_token_needs_its_proof() -> None:
    async with served() as http:
        good = proof(TOKEN, URL)
        assert (await asked(http, f"DPoP {TOKEN}", good)).status_code == 200
        for answer in (
            await asked(http, f"DPoP {TOKEN}", good),
            await asked(http, f"DPoP {TOKEN}"),
            await asked(http, f"Bearer {TOKEN}", proof(TOKEN, URL)),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith('DPoP error="invalid_dpop_proof", algs="ES256 ')
        plain = signed()
        assert (await asked(http, f"Bearer {plain}")).status_code == 200
        assert (await asked(http, f"DPoP {plain}", proof(plain, URL))).status_code == 401
        metadata = (await http.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert metadata["dpop_bound_access_tokens_required"] is False
        assert "ES256" in metadata["dpop_signing_alg_values_supported"]


async def test_where_proofs_are_required_a_bearer_token_is_not_enough() -> None:
    async with served(required=True) as http:
        assert (await asked(http, f"Bearer {signed()}")).status_code == 401
        assert (await asked(http, f"DPoP {TOKEN}", proof(TOKEN, URL))).status_code == 200


async def test_a_nonce_is_given_with_the_refusal() -> None:
    async with served(nonce=True) as http:
        refused = await asked(http, f"DPoP {TOKEN}", proof(TOKEN, URL))
        assert refused.status_code == 401 and 'error="use_dpop_nonce"' in refused.headers["www-authenticate"]
        again = proof(TOKEN, URL, nonce=refused.headers["dpop-nonce"])
        assert (await asked(http, f"DPoP {TOKEN}", again)).status_code == 200


@for_each_row("other", ["", "x" * 31, "." * 32, "é" * 32, "A" * 32, 7])
async def test_a_client_with_the_nonce_of_another_server_gets_ours(other: Any) -> None:
    async with served(nonce=True) as http:
        refused = await asked(http, f"DPoP {TOKEN}", proof(TOKEN, URL, nonce=other))
        assert 'error="use_dpop_nonce"' in refused.headers["www-authenticate"] and refused.headers["dpop-nonce"]


async def test_a_server_that_checks_no_proofs_refuses_bound_tokens() -> None:
    async with served(on=False) as http:
        assert (await asked(http, f"Bearer {TOKEN}")).status_code == 401
        assert (await asked(http, f"Bearer {signed(claims(cnf={'x5t#S256': 'x'}))}")).status_code == 401
        assert (await asked(http, f"Bearer {signed()}")).status_code == 200


def test_the_public_address_must_be_known() -> None:
    with pytest.raises(UsageError, match="DPoP proofs name the URL"):
        Auth(JWT(key=pem(KEY), audience="notes", issuer="login"), dpop=DPoP())
    with pytest.raises(UsageError, match="out of range"):
        DPoP(seconds=0)


@for_each_row(
    ("resource", "public"),
    [
        (URL, "https://tools.example.com/tools/add"),
        ("https://tools.example.com/kitchen/mcp", "https://tools.example.com/kitchen/tools/add"),
        ("https://tools.example.com/kitchen", "https://tools.example.com/tools/add"),
    ],
)
async def test_a_proof_for_rest_names_the_address_before_a_proxy_takes_off_a_prefix(resource: str, public: str) -> None:
    server = Server(
        "s", auth=Auth(JWT(key=pem(private_key()), audience=AUDIENCE, issuer=ISSUER), resource=resource, dpop=DPoP())
    )

    @server.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with listening(server, rest=True) as where:
        shown = f"authorization: DPoP {TOKEN}", f"dpop: {proof(TOKEN, public)}"
        said = await where.ask(*shown, body=b'{"a": 1, "b": 2}', path="/tools/add")
        assert said.startswith(b"HTTP/1.1 200 "), said
