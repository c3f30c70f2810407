"""Signing in to the server from the page, its host side: the way there and back, more scopes, and what ends it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve.cli.commands.inspect import make_inspector_target
from defserve.cli.target import ServerTarget
from defserve.client.signin.credentials import Keyring
from defserve.errors import PeerError
from defserve.inspector import era_connection
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import BadMessage, describe_error_for_page
from tests.client.signin.company import Company, company
from tests.inspector.asking import do
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(Keyring, "of_system", lambda: None)


class Seen:
    """A company, an inspection of its server, and all that pages were told."""

    def __init__(self, there: Company, inspection: Inspection) -> None:
        self.there, self.inspection, self.told = there, inspection, list[Any]()
        inspection.pages.append(lambda topic, data: self.told.append([topic, data]))

    @property
    def account(self) -> Any:
        return self.inspection.hello()["account"]

    async def is_(self, state: str) -> bool:
        await until(lambda: self.inspection.connection().state == state)
        return True

    async def refusal(self, verb: str, **arguments: Any) -> Any:
        with pytest.raises(PeerError) as refused:
            await do(self.inspection, verb, **arguments)
        return describe_error_for_page(refused.value)

    async def call(self) -> Any:
        return await do(self.inspection, "tools.call", tool="add", arguments={})

    async def sign_in(self, *scopes: str) -> str:
        """Begin to sign in, and say yes. The page at the end."""
        begun = await do(self.inspection, "account.sign_in", scopes=list(scopes))
        assert begun["state"] == "waiting" and begun["scopes"] == list(scopes)
        page = await _visited(self.there.say_yes(begun["address"]))
        await until(lambda: self.account["state"] not in ("starting", "waiting"))
        return page


async def _visited(location: str) -> str:
    return await asyncio.to_thread(lambda: urllib.request.urlopen(location, timeout=30).read().decode())


@asynccontextmanager
async def seen(**options: Any) -> AsyncGenerator[Seen]:
    async with company() as there:
        given = Namespace(**{"era": None, "token": None, "header": [], "verbose": False, **options})
        target = make_inspector_target(ServerTarget(address=there.url), [there.url], given)
        async with Inspection(target) as inspection:
            yield Seen(there, inspection)


async def test_who_signs_in_at_the_page_is_connected_until_they_sign_out() -> None:
    async with seen() as it:
        assert (await it.refusal("tools.list"))["fix"].startswith("sign in here, or at a terminal: defserve login http")
        hello = it.inspection.hello()
        assert hello["target"]["signs_in"] and hello["connections"][0]["sign_in"] == []
        assert hello["account"] == {"state": "idle", "kept": None}

        assert "Back to the inspector" in await it.sign_in()
        assert await it.is_("open") and (await it.call())["result"]["content"][0]["text"] == "3"
        await until(lambda: it.account["kept"])
        assert it.account["kept"] == {"issuer": it.there.origin, "scopes": ["read"]}

        # The token ends and is renewed; nobody is asked.
        it.there.tokens.clear()
        assert (await it.call())["state"] == "done" and len(it.there.visits) == 1

        # Everything is revoked: the person is asked again.
        it.there.tokens.clear()
        it.there.refreshing.clear()
        assert (await it.refusal("tools.call", tool="add", arguments={}))["sign_in"] == []
        await it.sign_in()
        assert await it.is_("open") and (await it.call())["state"] == "done"

        assert await do(it.inspection, "account.sign_out") == {"note": ""}
        assert it.there.revoked == ["refresh-3", "access-3"]
        assert await it.is_("refused")
        await until(lambda: it.account == {"state": "idle", "kept": None})

        # Neither pages nor the record of messages ever had a secret.
        shown = [
            it.inspection.recorder.describe_message(entry.seq) for entry in it.inspection.recorder.get_messages(0, 999)
        ]
        whole = json.dumps([it.told, shown, hello], default=str)
        secrets = [form.get(name) for form in it.there.forms for name in ("code", "code_verifier", "refresh_token")]
        assert "authorization" in whole and [each for each in filter(None, secrets) if each in whole] == []
        assert not any(f"{kind}-{number}" in whole for kind in ("access", "refresh") for number in (1, 2, 3))


async def test_a_call_that_needs_more_scopes_is_repeated_only_by_the_person() -> None:
    async with seen() as it:
        await it.is_("refused")
        await it.sign_in()
        await it.is_("open")
        it.there.wanted["tools/call"] = "write"
        refusal = await it.refusal("tools.call", tool="add", arguments={})
        assert refusal["sign_in"] == ["write"]
        assert len(it.there.visits) == 1, "nobody is sent to the issuer without a click"
        await until(lambda: it.account["kept"])
        await do(it.inspection, "account.sign_in", scopes=["write"])
        assert (await do(it.inspection, "account.cancel"))["kept"]["scopes"] == ["read"], "what was there still counts"
        assert len((await do(it.inspection, "tools.list"))["tools"]) == 1
        calls = [each for each in it.there.list_requested_uris("/mcp") if each.method == "tools/call"]
        await it.sign_in(*refusal["sign_in"])
        assert set(it.there.visits[1]["scope"].split()) == {"read", "write"}
        assert await it.is_("open")
        assert [each for each in it.there.list_requested_uris("/mcp") if each.method == "tools/call"] == calls
        assert (await it.call())["state"] == "done"


async def test_a_refusal_of_the_issuer_a_time_out_and_a_cancel_are_told_and_leave_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with seen() as it:
        it.there.answer_fields = {"error": "access_denied", "error_description": "not you", "code": ""}
        await it.sign_in()
        assert (
            it.account["state"] == "failed" and "refused the sign-in: access_denied: not you" in it.account["message"]
        )

        it.there.answer_fields = {}
        first = await do(it.inspection, "account.sign_in")
        assert (await do(it.inspection, "account.sign_in", scopes=["write"])) == first, "one at a time"
        location = it.there.say_yes(first["address"])
        assert (await do(it.inspection, "account.cancel"))["state"] == "cancelled"
        with pytest.raises(urllib.error.URLError):
            await _visited(location)
        assert (await do(it.inspection, "account.cancel"))["state"] == "cancelled"

        monkeypatch.setattr(era_connection, "SECONDS", 0.06)
        await do(it.inspection, "account.sign_in")
        await until(lambda: it.account["state"] == "failed")
        assert "nobody signed in within" in it.account["message"] and it.account["fix"] == "sign in again"

        it.there.issuer["code_challenge_methods_supported"] = []
        told = await do(it.inspection, "account.sign_in")
        assert told["state"] == "failed" and "PKCE" in told["message"] and "address" not in told
        assert it.there.given == 0 and it.inspection.connection().state == "refused"


async def test_a_sign_in_that_waits_ends_with_the_inspector() -> None:
    async with seen() as it:
        location = it.there.say_yes((await do(it.inspection, "account.sign_in"))["address"])
    with pytest.raises(urllib.error.URLError):
        await _visited(location)


async def test_there_is_no_sign_in_where_credentials_were_given_or_scopes_are_none() -> None:
    for options in ({"token": "mine"}, {"header": ["AUTHORIZATION: Basic eA=="]}):
        async with seen(**options) as it:
            assert not it.inspection.hello()["target"]["signs_in"]
            for verb in ("account.sign_in", "account.sign_out"):
                with pytest.raises(BadMessage):
                    await do(it.inspection, verb)
    async with seen() as it:
        for scopes in ("write", ["a b"], ['"'], [""], [1], ["x" * 201], ["x"] * 51):
            with pytest.raises(BadMessage):
                await do(it.inspection, "account.sign_in", scopes=scopes)
        assert it.account["state"] == "idle"


@for_each_row(
    "status challenge offered",
    [
        (401, 'Bearer resource_metadata="https://a.example"', []),
        (401, "", []),
        (401, 'Bearer error="invalid_token"', []),
        (401, 'Basic realm="a"', None),
        (403, 'Bearer error="insufficient_scope", scope="a b"', ["a", "b"]),
        (403, 'Bearer error="insufficient_scope"', None),
        (403, 'Bearer error="insufficient_scope", scope="a \\"b\\""', None),
        (403, f'Bearer error="insufficient_scope", scope="{" ".join(map(str, range(99)))}"', None),
        (403, "", None),
        (500, "Bearer", None),
    ],
)
def test_a_sign_in_is_offered_where_it_helps(status: int, challenge: str, offered: list[str] | None) -> None:
    error = PeerError("no", data={"status": status, "challenge": challenge})
    assert describe_error_for_page(error).get("sign_in") == offered
