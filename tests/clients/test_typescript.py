"""The official TypeScript client, run by Node, talks to `examples/everything.py` over HTTP in both eras."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from tests.at_address import at_address, fresh
from tests.conformance.suite_install import FOLDER, install, node

pytestmark = pytest.mark.anyio

PACKAGE = "@modelcontextprotocol/client"
VERSION = "2.4.0"
HOME = FOLDER / "typescript"
TOUR = Path(__file__).parent / "typescript" / "tour.cjs"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the client is installed. Skips where Node or the package cannot be had, as without a network."""
    HOME.mkdir(parents=True, exist_ok=True)
    # Tests that run side by side install it once.
    with (HOME / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            install(PACKAGE, VERSION, HOME)
        except SystemExit as error:
            pytest.skip(f"Node or {PACKAGE} {VERSION} could not be installed: {str(error)[-300:]}")
    return HOME


async def tour(folder: Path, address: str, version: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        node(), TOUR, folder, address, version, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            told, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    return json.loads(told)


# Installing may take longer than a test may.
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_it_lists_calls_reads_is_told_and_asked_and_may_change_its_mind(folder: Path, version: str):
    async with at_address(fresh("everything")) as address:
        told = await tour(folder, address, version)
    assert {"add", "bill", "count_to", "check_in", "learn"} <= set(told.pop("tools"))
    assert told == {
        "version": version,
        "server": "everything",
        "instructions": "Try any tool: nothing here does harm.",
        "bill": {"lines": 1, "total": 5},
        "refused": [True, "only 100 are left: ask for less"],
        "unknown": -32602,
        "counted": ["counted to 3"],
        "progress": [[0, 3], [1, 3], [2, 3], [3, 3]],
        "resource": "buy some",
        "prompt": ["user", "assistant"],
        "checkedIn": ["Ann stays 2 nights"],
        "summary": ["short"],
        "asked": ["Who are you?", "Summarize: long"],
        "cancelled": "cancelled",
        "learnt": ["say_moin"],
        "said": ["moin"],
        "news": ["notifications/tools/list_changed"],
    }
