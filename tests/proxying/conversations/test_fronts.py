"""Which client a call belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.proxying.channel import identify_front
from defserve.serve.session_opener import SessionOpener
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ANN = Principal("ann", kind="token")
REFRESHED = Principal("ann", claims={"exp": 2}, credential="refreshed")
STRONG = Principal("ann", frozenset({"admin"}))


def nowhere(message: Any) -> None: ...


async def test_a_client_without_a_session_is_the_same_when_its_request_is_over():
    provider = SessionOpener(Server("s", "1").composition)
    await provider.start(lambda: None)
    session = provider.open(nowhere, principal=ANN, counted=False)
    call = Call(session, 1, "subscriptions/listen", {}, {}, provider.composition.unopened)
    call.identity = ANN
    before = identify_front(call)
    provider.release_session(session)
    assert identify_front(call) == before
    assert before.key is not None and before.session is None
    await provider.stop()


@for_each_row("is_lasting", [True, False])
async def test_keys_of_one_principal_share_a_conversation_if_they_have_the_same_rights(is_lasting: bool):
    provider = SessionOpener(Server("s", "1").composition)
    await provider.start(lambda: None)
    session = provider.open(nowhere, principal=ANN, counted=is_lasting)

    def key(who: Principal) -> object:
        call = Call(session, 1, "tools/call", {}, {}, provider.composition.unopened)
        call.identity = who
        return identify_front(call).key

    assert key(ANN) == key(REFRESHED) != key(STRONG)
    provider.release_session(session)
    await provider.stop()
