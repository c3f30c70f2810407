"""Finding a tool among many: an index, rankers, and a budget for the tools that a model is shown.

Nothing here knows a protocol, a session or an event loop. Queries are cut and tables are bounded, whatever peers send.
An index holds only what its caller may see, so neither results nor scores tell of anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.search.entries import ToolBudget
    from defserve.search.ranking import Search
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.search.entries": "ToolBudget",
            "defserve.search.ranking": "Search",
        },
    )

__all__ = [
    "Search",
    "ToolBudget",
]
