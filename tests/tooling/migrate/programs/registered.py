"""Functions and methods that are registered by calls."""

from fastmcp import FastMCP


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def increase(self, by: int = 1) -> int:
        """Count on."""
        self.value += by
        return self.value


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def register(server: FastMCP) -> None:
    counter = Counter()
    server.tool(counter.increase)
    server.tool(name="welcome")(greet)


mcp = FastMCP("Registered")
register(mcp)

if __name__ == "__main__":
    mcp.run(transport="streamable-http", show_banner=False)
