"""The walk from the dispatcher to the author's function is short."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import defserve
from defserve import Context, Server
from defserve.extending import Extension
from tests.core.acme import Acme
from tests.raw import ERAS, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PACKAGE = str(Path(defserve.__file__).parent)
AT_MOST = 10
DISPATCHERS = {"_request", "_run_call"}


def framework_frames() -> int:
    """Frames of the package between the caller of this function and the dispatcher, which is not counted."""
    frame: FrameType | None = sys._getframe(2)
    count = 0
    while frame is not None and frame.f_code.co_name not in DISPATCHERS:
        count += frame.f_code.co_filename.startswith(PACKAGE)
        frame = frame.f_back
    assert frame is not None, "the dispatcher was not met on the way"
    return count


def probe() -> int:
    return framework_frames()


async def probe_async() -> int:
    return framework_frames()


async def probe_with_context(ctx: Context) -> int:
    return framework_frames()


@for_each_row("version", ERAS)
@for_each_row("extensions", [[], [Acme()]], ids=["bare", "with every stage"])
@for_each_row(("function", "inline"), [(probe, True), (probe_async, False), (probe_with_context, False)])
async def test_at_most_ten_frames_lie_between_dispatcher_and_function(
    version: str, extensions: list[Extension], function: object, inline: bool
):
    server = Server("s", "1", extensions=extensions)
    server.add_tool(function, name="probe", inline=inline)  # type: ignore[arg-type]
    async with raw(server, version) as peer:
        frames = int(text_of(await peer.call("probe")))
        assert 0 < frames <= AT_MOST
