from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_core import to_json

from defserve.errors import PeerError
from defserve.inspector.followed_tasks import FollowedRecord

LOAD = """
import asyncio, resource
from tests.inspector.conftest import target_of
from tests.inspector.greenhouse import server
from defserve.inspector.inspection import Inspection

async def main():
    async with Inspection(target_of(server)) as inspection:
        client = await inspection.client()
        while inspection.recorder.count < 100_000:
            await asyncio.gather(*(client.call_raw("help", {}) for _ in range(50)))
        assert inspection.recorder.message(5)["body"]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)

asyncio.run(main())
"""


@pytest.mark.soak
def test_with_100_000_messages_the_inspector_stays_under_200_mb():
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200


def test_of_a_task_that_failed_with_a_huge_error_little_is_kept():
    record = FollowedRecord(1, "stateless", "dig", {})
    record.record_end("failed", error=PeerError("x" * 200_000, data={"fix": "y" * 200_000}))
    assert len(to_json(record.to_full_wire())) < 10_000
    record.record_end("failed", error=PeerError("no spade", data={"fix": "buy one"}))
    assert record.error is not None and record.error["data"] == {"fix": "buy one"}
