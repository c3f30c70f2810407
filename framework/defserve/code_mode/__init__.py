"""Code mode: one tool in which a model writes Python that calls the other tools of the server.

The code runs in Monty, in a process that can reach nothing. Each tool it calls is a call of its own: it passes
permissions, guards, confirmation, audit and limits as if the client had made it. No call is made twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.code_mode.run import CodeMode
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.code_mode.run": "CodeMode",
        },
    )

__all__ = [
    "CodeMode",
]
