"""Which tools a conversation has loaded, within a budget of tokens (MGP §16.7, §16.8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from defserve.errors import UsageError


def tokens_of(size: int) -> int:
    """About how many tokens a model reads for so many bytes of JSON."""
    return -(-size // 4)


@dataclass(frozen=True, slots=True)
class ToolBudget:
    """Tokens: what lists and search results may cost a model.

    `pinned_reserve` is for tools that are always listed, `cache_limit` for those a conversation has loaded, and
    `discovery_reserve` for one answer to a search. `max_tokens` is for all of it together.
    """

    max_tokens: int = 8000
    pinned_reserve: int = 2000
    discovery_reserve: int = 3000
    cache_limit: int = 3000

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(value := getattr(self, field.name), int) or value < 0:
                raise UsageError(
                    f"ToolBudget({field.name}={value!r}) is not possible", fix="give a number of tokens, 0 or more"
                )
        parts = self.pinned_reserve + self.discovery_reserve + self.cache_limit
        if parts > self.max_tokens:
            raise UsageError(
                f"ToolBudget: its parts add up to {parts} tokens, more than max_tokens={self.max_tokens}",
                fix=f"give max_tokens={parts}, or make a part smaller",
            )


class LoadedTools:
    """The tools of one conversation, the one used last at the end. Those with a call under way are never evicted.

    `waiting` are tools that were asked for and that somebody has to approve first.
    """

    __slots__ = ("_running", "_tokens", "waiting")

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self._tokens: dict[str, int] = {}
        self._running = Counter[str]()

    def __contains__(self, name: object) -> bool:
        return name in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """Least recently used first."""
        return tuple(self._tokens)

    @property
    def tokens(self) -> int:
        return sum(self._tokens.values())

    def load(self, name: str, tokens: int, limit: int) -> bool:
        """Load a tool, or note that it was used. Others make room first. False if it is larger than the limit."""
        self._tokens.pop(name, None)
        if tokens > limit:
            return False
        for other in self.names:
            if self.tokens + tokens <= limit:
                break
            if not self._running[other]:
                del self._tokens[other]
        if self.tokens + tokens > limit:
            return False
        self._tokens[name] = tokens
        return True

    def evict(self, names: Iterable[str]) -> dict[str, int]:
        """Take tools out. Returns those that were loaded, with the tokens each one frees."""
        going = [name for name in dict.fromkeys(names) if name in self._tokens and not self._running[name]]
        return {name: self._tokens.pop(name) for name in going}

    def keep(self, known: Callable[[str], bool]) -> None:
        """Forget the tools that are not known any more."""
        self._tokens = {name: tokens for name, tokens in self._tokens.items() if known(name)}

    def begin(self, name: str) -> None:
        """A call of a tool begins; `end` must follow."""
        self._running[name] += 1

    def end(self, name: str) -> None:
        self._running[name] -= 1
        if self._running[name] <= 0:
            del self._running[name]
