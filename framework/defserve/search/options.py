"""`Server(search=Search(…))`: how a server with many tools is searched and listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from defserve.errors import UsageError
from defserve.search.budget import ToolBudget
from defserve.search.ranking import STRATEGIES, Strategy
from defserve.search.vectors import Embedder

Level: TypeAlias = Literal["auto", "L0", "L1", "L2", "L3"]


@dataclass(frozen=True, slots=True)
class Search:
    """What `tools/list` shows, and how tools are found.

    `level` "L0" lists every tool, "L1" the categories, "L2" only what searches, "L3" also what a conversation has
    loaded; "auto" is L0 while all tools fit into the budget, else L3. `pinned` tools are in every list. `strategy` is
    used when a caller names none. `embedder` replaces the vectors of the `[semantic]` extra. Clients whose names are
    in `whole_list_for` get every tool, because they search by themselves.
    """

    level: Level = "auto"
    pinned: Sequence[str] = ()
    budget: ToolBudget = field(default_factory=ToolBudget)
    strategy: Strategy = "hybrid"
    embedder: Embedder | None = None
    whole_list_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        _one_of("level", self.level, get_args(Level))
        _one_of("strategy", self.strategy, STRATEGIES)
        for name in ("pinned", "whole_list_for"):
            if isinstance(given := getattr(self, name), str):
                raise UsageError(f"Search({name}={given!r}) is not a list", fix=f"write {name}=[{given!r}]")
        if self.embedder is not None and not hasattr(self.embedder, "embed"):
            raise UsageError(
                f"Search(embedder={self.embedder!r}) has no method `embed`",
                fix="give an object with embed(texts), which returns one vector for each text",
            )

    @classmethod
    def of(cls, given: Any) -> Search:
        """What `Server(search=…)` was given: "auto", "always" or a Search. Raises UsageError for anything else."""
        if isinstance(given, Search):
            return given
        _one_of("search", given, ("auto", "always"), "Server")
        return cls() if given == "auto" else cls(level="L3")


def _one_of(name: str, given: Any, known: Sequence[str], subject: str = "Search") -> None:
    if given not in known:
        more = ", or Search(…)" if subject == "Server" else ""
        raise UsageError(
            f"{subject}({name}={given!r}) is not possible", fix=f"use one of {', '.join(map(repr, known))}{more}"
        )
