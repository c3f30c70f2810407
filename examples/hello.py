"""The smallest useful server: two functions, typed and documented, served."""

from defserve import Server, ToolError

server = Server("calculator", "1.0.0")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


@server.tool
def divide(dividend: float, divisor: float) -> float:
    """Divide one number by another."""
    if divisor == 0:
        raise ToolError("cannot divide by zero: give another divisor")
    return dividend / divisor


if __name__ == "__main__":
    server.main()
