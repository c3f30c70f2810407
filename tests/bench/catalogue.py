"""Modules of many tools, written as source: distinct functions, names and docstrings, as a large server has them.

The signatures repeat in a cycle that is as mixed as real servers are; one in eight takes a model. The second
does, so that catalogues of 3 and of 1,000 load the same libraries and differ in their number only.
"""

from __future__ import annotations

from pathlib import Path

HEADER = '''"""{count} generated tools."""

from typing import Annotated, Literal

from orders import Order, Receipt
from pydantic import Field
'''

SIGNATURES = (
    "query: str, limit: int = 20) -> str",
    "order: Order) -> Receipt",
    "x: float, y: float, exact: bool = False) -> float",
    "names: list[str], level: Literal['low', 'high'] = 'low') -> list[str]",
    "path: str, recursive: bool = False, depth: int | None = None) -> str",
    "counts: dict[str, int], floor: Annotated[int, Field(ge=0)] = 0) -> dict[str, int]",
    "title: str, body: str, tags: list[str] | None = None) -> str",
    "identifier: int) -> bool",
)

FUNCTION = '''
async def tool_{number:04}({signature}:
    """Do the work of department {number}, and say how it went."""
    raise NotImplementedError
'''


def write_catalogue(folder: Path, count: int) -> None:
    """Write `catalogue_<count>.py` into `folder`; its TOOLS are the functions in order."""
    functions = [
        FUNCTION.format(number=number, signature=SIGNATURES[number % len(SIGNATURES)]) for number in range(count)
    ]
    names = ", ".join(f"tool_{number:04}" for number in range(count))
    source = HEADER.format(count=count) + "".join(functions) + f"\nTOOLS = [{names}]\n"
    (folder / f"catalogue_{count}.py").write_text(source)
