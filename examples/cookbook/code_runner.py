"""Python written by a model, run on your numbers: judged first, then in a process that can reach nothing."""

from typing import Annotated, Any

from pydantic import BaseModel

from defserve import Code, Server, ToolError, dangerous
from defserve.sandbox import SandboxLimits, run_async

server = Server("analysis", "1.0.0", granted=["code_execution"])

SALES: dict[str, list[int]] = {"north": [12, 15, 11, 19], "south": [7, 9, 14, 8]}
MODULES = ["math", "statistics"]
LIMITS = SandboxLimits(seconds=5, memory_bytes=128 * 2**20, output_bytes=64 * 1024)


class Ran(BaseModel):
    value: Any
    printed: str


@server.tool
@dangerous("code_execution", effects=["process"], confirm=False)
async def analyse(code: Annotated[str, Code(level="strict", allow=MODULES)]) -> Ran:
    """Run a Python program on the sales of each region by quarter.

    Args:
        code: The program. `sales` holds the figures: {"north": [12, …], "south": […]}. What it leaves in `result`
            comes back. It may import math and statistics.
    """
    outcome = await run_async(code, level="strict", allow=MODULES, inputs={"sales": SALES}, limits=LIMITS)
    if not outcome:
        raise ToolError(outcome.error or outcome.status)
    if outcome.is_repr:
        raise ToolError(f"The result is not JSON: {outcome.value}. Leave numbers, texts, lists or dicts in `result`.")
    return Ran(value=outcome.value, printed=outcome.stdout)


if __name__ == "__main__":
    server.main()
