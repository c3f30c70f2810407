"""The four workflows of MCPx §9, each as its script plays it with a gateway and a worker in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking.spawning import quick_arguments

TOPIC = Path(__file__).parents[2] / "examples" / "topic"

START = "mcp/proposal:*, mcp/withdraw, mcp/response:*, chat"
REFUSED = "no capability for 'mcp/request:tools/call:add'"

PLAYS = {
    "proposal_based": [
        f"agent may send {START}",
        f"agent asks the worker: {REFUSED}",
        "human sees that agent proposes add to worker: {'a': 20, 'b': 22}",
        "agent hears of the completed proposal: 42",
    ],
    "capability_expansion": [
        f"administrator: {START} → {START}, mcp/request:tools/*",
        f"agent was welcomed again and may send {START}, mcp/request:tools/*",
        f"human sees that it may send {START}, mcp/request:tools/*",
        "agent asks the worker itself: 42",
    ],
    "mixed_environment": [
        f"agent may send {START}",
        "monitor may send mcp/request:*/list",
        "worker may send mcp/response:*, mcp/reject, chat",
        "human calls a tool: 5",
        "monitor lists tools: add, divide",
        f"monitor calls a tool: {REFUSED}",
        f"agent calls a tool: {REFUSED}",
        "agent proposes it instead: pending",
    ],
    "delegated_fulfilment": [
        "human is asked: agent wants add {'a': 1, 'b': 50}, and says yes",
        "agent proposed 1 + 50: 51",
        "human is asked: agent wants add {'a': 20, 'b': 22}, and says yes",
        "agent proposed 20 + 22: 42",
        "human is asked: agent wants add {'a': 40, 'b': 1}, and says yes",
        "agent proposed 40 + 1: 41",
        "human reads: add as always",
        "agent proposed 30 + 30: 60",
        "human is asked: agent wants add {'a': 1000, 'b': 1}, and says no",
        "agent proposed 1000 + 1: the proposal was declined: a person said no",
    ],
}


@pytest.mark.req("MCPX-9")
@pytest.mark.parametrize("play", PLAYS)
def test_the_workflow_goes_as_the_specification_tells_it(play: str):
    command = [sys.executable, *quick_arguments(TOPIC / f"{play}.py")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (shown.stdout.splitlines(), shown.returncode) == (PLAYS[play], 0)
    assert all(line.startswith("defserve: joined the topic 'demo'") for line in shown.stderr.splitlines())
