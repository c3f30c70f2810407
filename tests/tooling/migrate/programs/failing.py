"""Errors that a model reads."""

from fastmcp import FastMCP
from fastmcp.exceptions import ResourceError, ToolError

mcp = FastMCP("Failing")


@mcp.tool
def divide(a: float, b: float) -> float:
    """Divide."""
    if b == 0:
        raise ToolError("Division by zero: give another b.")
    return a / b


@mcp.tool
def age(years: int) -> str:
    """Say an age."""
    if years < 0:
        raise ToolError(f"{years} is not an age.")
    return f"{years} years"


@mcp.resource("logs://{day}")
def log(day: str) -> str:
    if day == "tomorrow":
        raise ResourceError("There is no log of tomorrow.")
    return f"log of {day}"


if __name__ == "__main__":
    mcp.run()
