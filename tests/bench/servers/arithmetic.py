"""Scalar tools, one of each kind. Nothing is imported, so that a scalar-only server shows what its framework loads."""


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_sync(a: int, b: int) -> int:
    """Add two numbers in a worker thread."""
    return a + b


def add_inline(a: int, b: int) -> int:
    """Add two numbers on the event loop."""
    return a + b
