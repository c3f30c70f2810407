"""`doctor --auth URL --token FILE`: whether a server takes a token, and which check it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.auth.api_keys import ApiKeys
from defserve.auth.auth_options import Auth
from defserve.auth.issuers import HttpRequest, HttpResponse
from defserve.cli import main
from defserve.stores.store import MemoryStore
from defserve.tooling.signin_check import Step, check_sign_in, check_token
from tests.auth.issuer import claims, private_key, signed
from tests.auth.served import served
from tests.rows import for_each_row
from tests.tooling.signin_check.test_signin_check import ISSUER, URL, Web

PEPPER = "0123456789abcdef0123456789abcdef"


def found(web: Web, token: str) -> dict[str, Step]:
    async def steps() -> list[Step]:
        return [step async for step in check_token(URL, token, web.ask)]

    return {step.name: step for step in asyncio.run(steps())}


def token(headers: dict[str, Any] | None = None, key: Any = None, **changed: Any) -> str:
    return signed(claims(**{"iss": ISSUER, "aud": URL, **changed}), headers=headers or {"kid": "a"}, key=key)


@for_each_row(
    ("shown", "said"),
    [
        (token(exp=1_700_000_000), "exp: it expired at 2023-11-14 22:13:20Z (sub 'alice', kid 'a')"),
        (token(nbf=4_000_000_000), "nbf: it is good from 2096-10-02"),
        (token(aud="https://other.example"), f"aud: it is for 'https://other.example', and this server is {URL}"),
        (token(iss="https://evil.example"), "iss: it names the issuer 'https://evil.example', and this server trusts"),
        (token({"kid": "b"}), "has no key 'b' for ES256"),
        (token(key=private_key(name="other")), "signature: it was not made with the issuer's key"),
    ],
)
def test_the_check_that_fails_is_named(shown: str, said: str):
    steps = found(Web(), shown)
    assert steps["accepted"].state == "broken" and steps["checked here"].state == "broken"
    assert said in steps["checked here"].about
    assert shown not in str(steps)


def test_a_token_says_what_it_is():
    about = found(Web(), token(exp=1_700_000_000, iat=None))["claims"].about
    expected = f"iss '{ISSUER}', aud '{URL}', sub 'alice', scope 'read write', exp 2023-11-14 22:13:20Z"
    assert about == expected


def test_a_token_that_only_the_server_refuses_is_good_here():
    assert "expects another audience, or has revoked it" in found(Web(), token())["checked here"].about


@for_each_row(
    ("status", "state", "words"),
    [(200, "ok", "yes"), (403, "broken", "lacks one of these scopes: read"), (500, "broken", "status 500")],
)
def test_what_the_server_answers_comes_first(status: int, state: str, words: str):
    steps = found(Web(status=status), token())
    assert (steps["accepted"].state, "checked here" in steps) == (state, False) and words in steps["accepted"].about


def test_an_api_key_can_only_be_tried():
    steps = found(Web(challenge="Bearer"), "0123456789abcdef.secret")
    assert list(steps) == ["accepted", "kind"] and "its log does" in steps["kind"].about


def test_a_server_of_api_keys_has_one_finding():
    async def steps() -> list[Step]:
        nothing = Web(challenge="Bearer")
        nothing.documents.clear()
        return [step async for step in check_sign_in(URL, nothing.ask)]

    first, only = asyncio.run(steps())
    assert (first.state, only.name, only.state) == ("ok", "sign-in", "missing")
    assert "API keys" in only.about and "defserve keys create" in only.fix


def test_nothing_is_sent_to_an_address_that_is_not_safe():
    async def ask(request: HttpRequest) -> HttpResponse:
        raise AssertionError("sent")

    async def steps() -> list[Step]:
        return [step async for step in check_token("http://tools.example/mcp", "t", ask)]

    (step,) = asyncio.run(steps())
    assert step.state == "broken" and "only https" in step.about


def test_the_command_tries_a_key_at_a_real_server(capsys: pytest.CaptureFixture[str], tmp_path: Any):
    keys = ApiKeys(MemoryStore(), pepper=PEPPER)
    with served(lambda url: Auth(keys), host="127.0.0.1") as url:
        (tmp_path / "key").write_text(asyncio.run(keys.create("alice", permissions=["ToolInvoke(*)"])).token)
        assert main(["doctor", "--auth", url, "--token", str(tmp_path / "key")]) == 0
        assert main(["doctor", "--auth", url]) == 0
        out = capsys.readouterr().out
        assert "accepted  yes" in out and "sign-in" in out and "Issuer" not in out
        (tmp_path / "key").write_text("0123456789abcdef.wrong")
        assert main(["doctor", "--auth", url, "--token", str(tmp_path / "key")]) == 1
    assert main(["doctor", "--token", str(tmp_path / "key")]) == 1
