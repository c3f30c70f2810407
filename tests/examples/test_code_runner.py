from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from defserve.errors import ToolError
from defserve.sandbox import engines

from .refusals import refused

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not engines(), reason="nothing can contain code here")]


@pytest.mark.req("MGP-7.3", "MGP-7.4")
async def test_code_is_judged_run_and_explained(connect_to: ConnectTo, speaking: dict[str, Any]):
    async with connect_to("code_runner", capabilities=speaking) as client:
        (tool,) = await client.tools()
        block = tool["_meta"]["dev.defserve/security"]
        shown = dict(block["code_safety"])
        assert "eval(" in shown.pop("blocked_patterns")
        assert shown == {
            "level": "strict", "language": "python", "max_code_size_bytes": 10_000,
            "allowed_imports": ["json", "math", "statistics"],
        }  # fmt: skip
        assert tool.get("security") == (block if speaking else None)

        program = "import math\nprint('rooting')\nresult = [math.sqrt(n) for n in numbers]"
        ran = await client.call("evaluate", code=program, inputs={"numbers": [4, 9]})
        assert ran == {"value": [2.0, 3.0], "printed": "rooting\n"}

        body = await refused(client, "evaluate", code="x = 1\nimport subprocess")
        assert body["reason"] == "Code validation failed"
        assert body["violations"] == ["Blocked import: 'subprocess' (line 2, import)"]
        assert body["code"] == (1011 if speaking else "CODE_SAFETY_VIOLATION")
        assert body["hints"]["allowed_imports"] == ["json", "math", "statistics"]


async def test_a_program_that_fails_is_told_to_the_model_without_a_path_of_the_host(connect_to: ConnectTo):
    async with connect_to("code_runner") as client:
        with pytest.raises(ToolError, match="(?s)line 2.*ZeroDivisionError") as failed:
            await client.call("evaluate", code="a = 1\na / 0")
        assert "/" not in str(failed.value).replace("/ 0", "")
