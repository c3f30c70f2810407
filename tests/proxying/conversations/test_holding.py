"""Conversations that are kept for further requests: bounded, and nobody takes all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from defserve.proxying.calls import HeldChannels

pytestmark = pytest.mark.anyio


def channel_of(principal: str) -> Any:
    return SimpleNamespace(front=SimpleNamespace(principal=principal), gone=None, end_exchange=print)


async def test_one_caller_cannot_take_all_that_are_kept() -> None:
    held = HeldChannels(16)
    exchange: Any = object()
    greedy = [held.hold_channel(channel_of("ann"), exchange) for _ in range(16)]
    assert [handle is not None for handle in greedy] == [True] * 12 + [False] * 4
    others = [held.hold_channel(channel_of(f"caller {number}"), exchange) for number in range(6)]
    assert [handle is not None for handle in others] == [True] * 4 + [False] * 2
    held.release_channel(greedy[0])
    assert held.hold_channel(channel_of("ann"), exchange) is not None
    for handle in (*greedy, *others):
        held.release_channel(handle)
