"""A server for a container: its settings come from the environment, and it says whether it is well."""

import os
import shutil
from typing import Annotated

from defserve import Limits, Server, safe

server = Server("greeter", "1.0.0", limits=Limits(drain=8))


@server.health_check(critical=True, timeout=2)
def disk() -> str | None:
    return None if shutil.disk_usage(".").free > 10_000_000 else "less than 10 MB are free"


@server.tool
@safe
def greet(name: Annotated[str, "Whom to greet."]) -> str:
    """Greet somebody."""
    return f"{os.environ.get('GREETING', 'Hello')}, {name}!"


if __name__ == "__main__":
    server.main()
