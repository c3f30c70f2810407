"""What is known of a tool for finding it (MGP §16.4), as words that can be compared.

Also which tools a conversation has loaded, within a budget of tokens (§16.7, §16.8).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError, explain_arguments

RiskLevel: TypeAlias = Literal["safe", "moderate", "dangerous"]
RISK_LEVELS: tuple[RiskLevel, ...] = ("safe", "moderate", "dangerous")

# Of one tool: what is read of it, whatever its server says. Long descriptions drown what matters.
MAX_PARAMETERS, MAX_LABELS, MAX_LABEL_LENGTH = 64, 32, 64
MAX_DESCRIPTION_LENGTH, MAX_PARAMETER_TEXT_LENGTH = 2_000, 300


@dataclass(frozen=True, slots=True, eq=False)
class ToolEntry:
    """One tool in an index. Entries are compared by identity: a tool that changes gets a new one.

    `name` is what callers use, `tool_id` names its server as well. `tokens` is what its listing costs a model.
    """

    tool_id: str
    server_id: str
    name: str
    title: str = ""
    description: str = ""
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    risk: RiskLevel = "moderate"
    permissions: tuple[str, ...] = ()
    tokens: int = 0
    status: str = "connected"

    def is_in_category(self, category: str) -> bool:
        """Whether it is in a category or in one below it: `files.read` is within `files`."""
        wanted = category.lower()
        return any(c == wanted or c.startswith(wanted + ".") for c in self.categories)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """What results must be. Empty fields ask for nothing."""

    categories: tuple[str, ...] = ()
    risk_level_max: RiskLevel | None = None
    status: str | None = None

    def admits(self, entry: ToolEntry) -> bool:
        if self.categories and not any(map(entry.is_in_category, self.categories)):
            return False
        if self.risk_level_max is not None and RISK_LEVELS.index(entry.risk) > RISK_LEVELS.index(self.risk_level_max):
            return False
        return self.status is None or entry.status == self.status


def make_listed_entry(tool: Mapping[str, Any]) -> ToolEntry:
    """A tool that is only known from a list."""
    name, schema = str(tool.get("name")), tool.get("inputSchema")
    return ToolEntry(
        name,
        "",
        name,
        str(tool.get("title") or ""),
        str(tool.get("description") or ""),
        parameters=extract_parameter_texts(schema) if is_object(schema) else (),
    )


def normalize_labels(given: Sequence[str]) -> tuple[str, ...]:
    """Categories or keywords as they are kept: lower case, each once, cut to a bound."""
    short = (text.strip().lower()[:MAX_LABEL_LENGTH] for text in given)
    return tuple(dict.fromkeys(text for text in short if text))[:MAX_LABELS]


def extract_parameter_texts(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Of each of a tool's arguments, as far as it is read: its name, its description, the texts it may be."""
    found: list[str] = []
    properties = schema.get("properties")
    for name, about in list(properties.items())[:MAX_PARAMETERS] if is_object(properties) else ():
        said = about.get("description") if is_object(about) else None
        short = said[:MAX_PARAMETER_TEXT_LENGTH] if isinstance(said, str) else ""
        found += [str(name)[:MAX_LABEL_LENGTH], short, " ".join(_values(about))[:MAX_PARAMETER_TEXT_LENGTH]]
    return tuple(found)


def _values(about: Any) -> list[str]:
    """The texts that an argument, or what is in its list, may be."""
    if not is_object(about):
        return []
    values = about.get("enum")
    given = values[:MAX_LABELS] if is_array(values) else []
    return [value[:MAX_LABEL_LENGTH] for value in given if isinstance(value, str)] or _values(about.get("items"))


def derive_categories(server_id: str, tags: Any) -> tuple[str, ...]:
    """What a tool belongs to: the tags that its author gave, then its server."""
    given = [tag for tag in tags if isinstance(tag, str)] if is_array(tags) else []
    return normalize_labels([*given, server_id])


# -- Text to words that can be compared: split, lower case, without endings.


MAX_INDEXED_TEXT_LENGTH = 4_000
"""Characters. The rest of a text is not read."""

MAX_WORD_LENGTH = 40

# Scripts that put no spaces between words: Japanese, Chinese, and Korean, whose words have many endings.
_WIDE = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_RUNS = re.compile(rf"[{_WIDE}]+|[^\W_{_WIDE}]+")
_WITHOUT_SPACES = re.compile(f"[{_WIDE}]")

# `readHTMLFile2` is read, HTML, File, 2.
_PARTS = re.compile(r"[A-Z]+(?![^\WA-Z\d_])|[A-Z]?[^\WA-Z\d_]+|\d+")

STOP_WORDS = frozenset(
    (
        "a about after again all also am an and any anything are as at be because been before being both but by can "
        "could did do does doing down each else even every everything few for from get gets getting give given go goes "
        "going got had has have having he her here him his how i if in into is it its just let like ll m make may me "
        "many might more most much must my need needs no not nothing now of off on once one only or other our out over "
        "own per please put re s same say see shall she should so some someone something still such t take tell than "
        "that the their them then there these they thing things this those through to too two under until up us use "
        "used using ve very want wants was way we were what when where whether which while who whom whose why will "
        "with without would yet you your yours"
    ).split()
)

_VOWEL = re.compile("[aeiouy]")

# Ending → what it becomes, and the letters that must be left. The first that fits is taken: first one of a form, then
# one of a word that is made from another. Short stems are other words: `station` is no state, and `author` no auth.
_FORMS = (
    ("ingly", "", 3),
    ("ings", "", 3),
    ("ing", "", 3),
    ("edly", "", 3),
    ("ies", "y", 2),
    ("ied", "y", 2),
    ("ed", "", 3),
    ("ees", "ee", 2),
    ("es", "", 3),
    ("s", "", 3),
)
_DERIVED = (
    ("ication", "icat", 3),
    ("ization", "iz", 3),
    ("ation", "at", 3),
    ("ment", "", 3),
    ("ion", "", 5),
    ("or", "", 5),
    ("er", "", 5),
    ("ly", "", 5),
)
_WHOLE = frozenset("news comment moment customer number".split())


def stem_words(words: Iterable[str]) -> list[str]:
    """The stems of words, each once, without stop words; with them if there is nothing else."""
    said = list(words)
    return list(dict.fromkeys(stem_word(word) for word in [w for w in said if w not in STOP_WORDS] or said))


def split_words(text: str) -> list[str]:
    """The words of a text in lower case. Scripts without spaces give pairs of characters."""
    return [part for run in _RUNS.findall(text[:MAX_INDEXED_TEXT_LENGTH]) for part in _parts(run)]


def _parts(run: str) -> Iterator[str]:
    if _WITHOUT_SPACES.match(run):
        yield from (run[at : at + 2] for at in range(max(len(run) - 1, 1)))
        return
    for part in _PARTS.findall(run) or (run,):
        yield part[:MAX_WORD_LENGTH].lower()


@lru_cache(maxsize=8_192)
def stem_word(word: str) -> str:
    """A word without its ending: `creates`, `created` and `creation` are all `creat`."""
    if len(word) < 4 or not word.isascii() or word in _WHOLE:
        return word
    if not word.endswith(("ss", "us", "is")):
        word = _without(word, _FORMS)
    if word not in _WHOLE and len(word) > 3:
        word = _without(word, _DERIVED)
        return word[:-1] if word.endswith("e") and len(word) > 3 else word
    return word


def _without(word: str, endings: Iterable[tuple[str, str, int]]) -> str:
    for ending, becomes, least in endings:
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= least and (becomes or _VOWEL.search(rest)):
            # `stopped` to `stop`; `called` to `call`.
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "aeiouls"
            return rest[:-1] if doubled and not becomes else rest + becomes
    return word


def is_misspelling(one: str, other: str) -> bool:
    """Whether two words differ by one letter that is missing, wrong, or swapped with the next."""
    if abs(len(one) - len(other)) > 1:
        return False
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[at:], other[at:]
    if one[1:] == other[1:] or one[1:] == other or one == other[1:]:
        return True
    return one[2:] == other[2:] and one[:2] == other[1::-1]


# -- Which tools a conversation has loaded, within a budget of tokens (MGP §16.7, §16.8).


def estimate_tokens(size: int) -> int:
    """About how many tokens a model reads for so many bytes of JSON."""
    return -(-size // 4)


@explain_arguments
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
        for share in fields(self):
            if not isinstance(value := getattr(self, share.name), int) or value < 0:
                raise UsageError(
                    f"ToolBudget({share.name}={value!r}) is not possible", fix="give a number of tokens, 0 or more"
                )
        parts = self.pinned_reserve + self.discovery_reserve + self.cache_limit
        if parts > self.max_tokens:
            raise UsageError(
                f"ToolBudget: its parts add up to {parts} tokens, more than max_tokens={self.max_tokens}",
                fix=f"give max_tokens={parts}, or make a part smaller",
            )


@dataclass(slots=True, eq=False)
class LoadedTools:
    """The tools of one conversation, the one used last at the end. Those with a call under way are never evicted.

    `waiting` are tools that were asked for and that somebody has to approve first.
    """

    waiting: set[str] = field(default_factory=set[str])
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _running: Counter[str] = field(default_factory=Counter[str])

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

    def load_tool(self, name: str, tokens: int, limit: int) -> bool:
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

    def retain_known(self, known: Callable[[str], bool]) -> None:
        """Forget the tools that are not known any more."""
        self._tokens = {name: tokens for name, tokens in self._tokens.items() if known(name)}

    def begin_call(self, name: str) -> None:
        """A call of a tool begins; `end_call` must follow."""
        self._running[name] += 1

    def end_call(self, name: str) -> None:
        self._running[name] -= 1
        if self._running[name] <= 0:
            del self._running[name]
