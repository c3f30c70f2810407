"""Which tools a server of a given shape has. Every contender registers the same functions, in the same order.

`scalar` is three scalar tools, `model` three of which one takes a model, `calls` all six that are timed, and a
number is a catalogue of so many generated tools (see catalogue.py). Only what the shape needs is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["async", "sync", "inline"]
    Tools: TypeAlias = list[tuple[Callable[..., Any], Kind]]


def tools_of(shape: str) -> Tools:
    if shape.isdecimal():
        from importlib import import_module

        return [(function, "async") for function in import_module(f"catalogue_{shape}").TOOLS]

    from arithmetic import add, add_inline, add_sync

    scalar: Tools = [(add, "async"), (add_sync, "sync"), (add_inline, "inline")]
    if shape == "scalar":
        return scalar

    from orders import price_order, price_order_inline, price_order_sync

    if shape == "model":
        return [(add, "async"), (add_sync, "sync"), (price_order, "async")]
    if shape == "calls":
        return [*scalar, (price_order, "async"), (price_order_sync, "sync"), (price_order_inline, "inline")]
    raise SystemExit(f"no such shape: {shape}")
