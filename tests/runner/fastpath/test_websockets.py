"""What uvicorn takes for a fault of the app, and is one of the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from defserve.runner.fastpath.websockets import PatientWebSocket

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["websocket.send", "websocket.close"])
async def test_what_is_sent_after_the_client_was_hung_up_on_fails_as_if_it_had_left(kind: str):
    closed = cast(Any, SimpleNamespace(close_sent=True))
    with pytest.raises(OSError):
        await PatientWebSocket.send(closed, {"type": kind})
