"""Which client a call belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.proxying.conversations.fronts import front_of
from defserve.runner.web_sessions import WebSessions

pytestmark = pytest.mark.anyio

ANN = Principal("ann", kind="token")


def nowhere(message: Any) -> None: ...


async def test_a_client_without_a_session_is_the_same_when_its_request_is_over():
    provider = WebSessions(Server("s", "1").composition)
    await provider.start(lambda: None)
    session = provider.open(nowhere, principal=ANN, counted=False)
    call = Call(session, 1, "subscriptions/listen", {}, {}, provider.composition.unopened)
    call.identity = ANN
    before = front_of(call)
    provider.end(session)
    assert front_of(call) == before
    assert before.key == "ann" and before.session is None
    await provider.stop()
