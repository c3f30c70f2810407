"""Other servers inside one: a child process behind the names and the rules of this server.

`python -m examples.mounted` serves both. Clients see `calc_add` beside `today`. The child sees none of this server's
environment but what is listed.
"""

import sys
from datetime import date
from pathlib import Path

from defserve import Command, Server, ToolError
from defserve.extending import Call, Next

server = Server("desk", "1.0.0")

calculator = Command(sys.executable, "-m", "examples.hello", cwd=Path(__file__).parents[1], env={"TZ": "UTC"})
server.mount(calculator, prefix="calc", timeout=20)


@server.tool
def today() -> str:
    """Today's date."""
    return date.today().isoformat()


@server.around("tools/call")
async def not_too_large(call: Call, params: dict, next: Next) -> dict:
    """What this server wraps around calls acts on mounted tools, too."""
    if any(isinstance(value, int) and value > 1_000_000 for value in (params.get("arguments") or {}).values()):
        raise ToolError("numbers up to a million, please")
    return await next(call, params)


if __name__ == "__main__":
    server.run()
