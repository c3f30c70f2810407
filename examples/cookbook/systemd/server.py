"""A server under systemd: it keeps its state in its own folder, and finishes its calls when it is stopped."""

import os

from pydantic import BaseModel

from defserve import Limits, Server, State

server = Server("counter", "1.0.0", store=os.environ.get("STORE", "memory:"), limits=Limits(drain=20))


class Count(BaseModel):
    value: int = 0


server.state(Count, per="server")


@server.tool
def count_up(count: State[Count]) -> int:
    """Count one more call."""
    count.value += 1
    return count.value


if __name__ == "__main__":
    server.main()
