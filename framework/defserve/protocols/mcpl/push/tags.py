"""MCPL 0.5 §9: tags of events and messages: `ns:value` or `ns:key=value`. They describe; they permit nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array

MOST_TAGS: Final = 100
LONGEST_TAG: Final = 256

CHAT: Final = frozenset(
    """addressed mention reply dm ambient broadcast to-self from-human from-bot from-self from-agent edited deleted
    reaction reaction-remove has-image has-audio has-file has-link command private group thread""".split()
)
RESERVED: Final = ("chat", "mcpl")

# A tag → the tags that follow from it.
IMPLIED: Final[Mapping[str, tuple[str, ...]]] = {
    "chat:mention": ("chat:addressed",),
    "chat:reply": ("chat:addressed",),
    "chat:dm": ("chat:addressed", "chat:private"),
}

_TAG: Final = re.compile(r"([A-Za-z0-9._*-]+):([A-Za-z0-9._:*-]+)(=[^\s=]+)?")


def checked(tags: Iterable[str]) -> list[str]:
    """An author's tags, each once. Raises UsageError for what is not a tag, and for names that are reserved."""
    given: Any = tags
    if isinstance(given, str) or not all(isinstance(tag, str) for tag in given):
        raise UsageError(f"tags={given!r:.80} is not a list of texts", fix='tags=["chat:mention"]')
    found = list(dict.fromkeys(given))
    for tag in found:
        match = _TAG.fullmatch(tag)
        if match is None or len(tag) > LONGEST_TAG:
            raise UsageError(f"{tag!r:.80} cannot be a tag", fix="write namespace:value or namespace:key=value")
        if match[1] in RESERVED and not (match[1] == "chat" and tag.removeprefix("chat:") in CHAT):
            raise UsageError(f"tag {tag!r}: the namespace {match[1]!r} is reserved", fix="use a namespace of your own")
    if len(found) > MOST_TAGS:
        raise UsageError(f"{len(found)} tags are too many", fix=f"give at most {MOST_TAGS}")
    return found


def closure(tags: Iterable[str]) -> list[str]:
    """The tags with those that follow from them. What is addressed is not ambient."""
    found = dict.fromkeys(tags)
    for tag in list(found):
        found.update(dict.fromkeys(IMPLIED.get(tag, ())))
    if "chat:addressed" in found:
        found.pop("chat:ambient", None)
    return list(found)


def read(value: Any) -> tuple[str, ...]:
    """The tags that a server sent, with those that follow from them. What is not a tag is left out."""
    given = value[:MOST_TAGS] if is_array(value) else ()
    known = (tag for tag in given if isinstance(tag, str) and len(tag) <= LONGEST_TAG and _TAG.fullmatch(tag))
    return tuple(closure(known))
