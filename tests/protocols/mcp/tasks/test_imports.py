from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from defserve import Context, Server

server = Server("s", "1")

@server.tool({options})
async def job(ctx: Context) -> str:
    return "x"

server.composition
print(any(name.startswith("defserve.protocols.mcp.tasks") for name in sys.modules))
"""


@pytest.mark.parametrize(("options", "is_imported"), [("timeout=5", "False"), ("task='optional'", "True")])
def test_only_a_server_with_a_task_tool_imports_tasks(options: str, is_imported: str):
    command = [sys.executable, "-c", CODE.replace("{options}", options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == is_imported
