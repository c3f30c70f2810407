from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from defserve.gateway.policy import Admission, parse_config
from tests.auth import issuer

pytestmark = pytest.mark.anyio


def jwt_policy(folder: Path, **more: Any):
    (folder / "key.pem").write_text(issuer.pem(issuer.private_key()))
    about = {"issuer": issuer.ISSUER, "audience": issuer.AUDIENCE, "key_file": "key.pem", "algorithms": "ES256"}
    return parse_config({"jwt": {**about, **more}, "profiles": {"monitor": ["mcp/request:*/list"]}}, folder).policy


def token(**claims: Any) -> str:
    return issuer.signed(issuer.claims(**claims), key=issuer.private_key())


@pytest.mark.req("MCPX-5.1", "MCPX-7.1")
async def test_a_signed_token_says_who_it_is_and_may_only_propose_unless_it_says_more(tmp_path: Path):
    admission = await jwt_policy(tmp_path).admit(token(exp=4_000_000_000), "demo")
    assert admission == Admission(
        "alice", ("mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"), expires=4_000_000_000
    )


@pytest.mark.req("MCPX-5.1")
@pytest.mark.parametrize(
    ("claims", "held"),
    [
        ({"mcpx_capabilities": ["chat"]}, ("chat",)),
        ({"mcpx_capabilities": []}, ()),
        ({"mcpx_profile": "full"}, ("mcp/*", "chat")),
        ({"mcpx_profile": "monitor"}, ("mcp/request:*/list",)),
        ({"mcpx_topics": ["de*"], "mcpx_profile": "full"}, ("mcp/*", "chat")),
    ],
)
async def test_its_claims_say_what_it_may_send(tmp_path: Path, claims: dict[str, Any], held: tuple[str, ...]):
    admission = await jwt_policy(tmp_path).admit(token(**claims), "demo")
    assert admission is not None and admission.capabilities == held


@pytest.mark.parametrize(
    "claims",
    [
        {"mcpx_capabilities": "chat"},
        {"mcpx_capabilities": [1]},
        {"mcpx_profile": "king"},
        {"mcpx_profile": ["full"]},
        {"mcpx_topics": ["other"]},
        {"mcpx_topics": "demo"},
        {"sub": "system:gateway"},
        {"sub": "two words"},
        {"exp": 1},
        {"aud": "https://elsewhere.example"},
    ],
)
async def test_a_token_that_cannot_be_read_lets_nobody_in(tmp_path: Path, claims: dict[str, Any]):
    assert await jwt_policy(tmp_path).admit(token(**claims), "demo") is None


async def test_the_claims_may_have_other_names(tmp_path: Path):
    policy = jwt_policy(tmp_path, capabilities_claim="caps", topics_claim="rooms")
    admission = await policy.admit(token(caps=["chat"], rooms=["demo"], mcpx_topics=["other"]), "demo")
    assert admission is not None and admission.capabilities == ("chat",)
