from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("cedarpy")

from defserve import ToolError
from defserve.server.call_decision import explain_call, resolve_named_caller
from defserve.testing import SyncClient
from examples.cookbook import policy_cedar


def test_small_refunds_run_and_large_ones_are_refused(client: SyncClient):
    assert client.call("refund", order="7", amount=500) == "500 cents of order 7 are paid back"
    with pytest.raises(ToolError, match="no rule"):
        client.call("refund", order="7", amount=60_000)


def test_a_person_agrees_to_what_is_between(client: SyncClient):
    client.will_answer({"value": False}, {"value": True})
    with pytest.raises(ToolError, match="not confirmed"):
        client.call("refund", order="7", amount=5_000)
    assert client.call("refund", order="7", amount=5_000) == "5000 cents of order 7 are paid back"


def test_nobody_without_an_account_pays_money_back():
    async def explain() -> bool:
        server = policy_cedar.server
        caller = await resolve_named_caller(server, "anonymous")
        return (await explain_call(server, caller, "refund", {"order": "7", "amount": 5})).would_run

    assert asyncio.run(explain()) is False
