"""How many files a call walks through, and that ARCHITECTURE.md shows the walks as they are."""

from __future__ import annotations

import sys

import pytest

from tests.rows import for_each_row
from tests.walks import MOST, PAGE, ROADS, section, walk_of

pytestmark = pytest.mark.anyio


@for_each_row("road", ROADS)
async def test_a_call_visits_no_more_files_than_it_did(road: str):
    walk = await walk_of(road)
    assert len(walk.files) <= MOST[road], str(walk)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the page shows the walks on Python 3.11")
async def test_the_walks_that_are_written_down_are_those_that_calls_take():
    walks = {road: await walk_of(road) for road in ROADS}
    assert section(walks) in PAGE.read_text(encoding="utf-8"), "write them anew: python -m tests.walks"
