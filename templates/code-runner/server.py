"""{{ cookiecutter.description }}"""

from typing import Annotated, Any

from defserve import Code, Server, ToolError, dangerous
from defserve.sandbox import SandboxLimits, run_async
from pydantic import BaseModel

server = Server("{{ cookiecutter.project_slug }}", granted=["code_execution"])

MODULES = ["math", "json", "statistics"]
LIMITS = SandboxLimits(seconds=5, memory_bytes=128 * 2**20, output_bytes=64 * 1024)


class Ran(BaseModel):
    """What came of a program."""

    value: Any
    printed: str


@server.tool(title="Run a program")
@dangerous("code_execution", effects=["process"], confirm=False)  # it is contained: nobody has to confirm it
async def evaluate(
    code: Annotated[str, Code(level="strict", allow=MODULES)], inputs: dict[str, Any] | None = None
) -> Ran:
    """Run a Python program.

    Args:
        code: The program; its value is what it leaves in `result`, or its last line.
        inputs: Variables it starts with.
    """
    outcome = await run_async(code, level="strict", allow=MODULES, inputs=inputs, limits=LIMITS)
    if not outcome:
        raise ToolError(outcome.error or outcome.status)
    return Ran(value=outcome.value, printed=outcome.stdout)


if __name__ == "__main__":
    server.main()
