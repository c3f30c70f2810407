"""What a sentence asks for and what a tool does: read, create, delete, change, send or act.

A verb says little of which tool is meant, as half of all tools `get` something. But it tells which ones are not meant:
who asks a question wants nothing deleted.
"""

from __future__ import annotations

import re

from defserve.search.entries import ToolEntry
from defserve.search.words import split, stem

# The verbs of each kind of deed, some with the word after them. Some are of several kinds.
_DEEDS = """
read: get read show fetch retrieve view see look display load print check tell inspect list browse search find
read: locate query describe count download export know compare lookup explain examine return scan verify
read: analyze summarize give extract monitor diff status
read: make-sure find-out take-look have-look pull-up work-out figure-out go-through walk-me compute calculate detect
create: create make new add build generate compose draft insert register setup begin start produce open put plan
create: book schedule prepare write install upload attach append log file save store keep record invite raise
create: import post push fork copy note remember upsert manage
create: set-up put-together come-up write-down jot kick-off sign-up back-up duplicate clone remind
delete: delete remove erase drop destroy discard forget clear wipe purge trash cancel unlink detach uninstall
delete: throw rid evict stop take manage
delete: get-rid throw-away throw-out take-out take-off take-down clean-up tidy-up clean-out stop-sharing
change: update change edit modify alter set adjust revise rewrite replace patch amend fix correct rename move
change: transition assign manage mark turn format restrict reset tag label colour color connect link merge give
change: grant share allow bring put point switch transform convert
change: go-back roll-back undo revert restore bring-up hand-over take-over put-off push-back swap archive
send: send post mail notify deliver message tell email reply answer respond announce publish comment write say
send: leave push
send: let-everyone let-everybody let-them let-him let-her forward ask drop-a ping
act: run execute start launch evaluate trigger invoke stop kill apply click press drag hover navigate go visit
act: wait type fill scale merge hold hit open close handle take
"""
READ = 1  # the kind of the first line

# In the name of a tool these are what it works on.
_THINGS = frozenset("file message comment log note record label status mail email new link".split())
_QUESTIONS = frozenset("which what who whom whose when where how why is are does do did has have was were am".split())
_LEADS = frozenset("i d ll we you us me my to let and just also now then hey hi".split())
_PLEASE = re.compile(
    r"\b(?:please|kindly|help me|(?:can|could|would|will) you|i(?:['’]d| would)? (?:want|need|like)(?: to)?)\b", re.I
)
_TO_ME = re.compile(r"\b(?:give|get|bring|show|tell) me\b|\blet me (?:see|know)\b", re.I)

# How a query begins that wants to find out something, and what it says if that may be anywhere.
_LOOKING = re.compile(
    r"\W{0,9}(?:(?:hey|hi|so|ok|and)\b\W{1,9})?"
    r"(?:where|did|do|does|has|have|is there|are there|was|were|which|who|whom|whose|what|"
    r"any|show|list|find|look|search)\b",
    re.I,
)
_ANYWHERE = re.compile(r"\b(?:where|did|has|have|ever|anyone|anybody|somebody|anything|everything|any|all)\b", re.I)
_LISTS, _SEARCHES = frozenset("list filter grep".split()), frozenset("search find query".split())


def _deeds() -> dict[str, int]:
    found: dict[str, int] = {}
    bits: dict[str, int] = {}
    for line in _DEEDS.strip().splitlines():
        kind, verbs = line.split(": ")
        bit = bits.setdefault(kind, READ << len(bits))
        for root in map(stem, verbs.split()):
            found[root] = found.get(root, 0) | bit
    return found


_KINDS = _deeds()
VERBS = frozenset(_KINDS)
"""The stems of all verbs."""


def deeds_wanted(query: str) -> int:
    """The kinds of deed that a query asks for, as bits; 0 if that is not clear."""
    if _TO_ME.search(query):
        return READ
    for part in reversed(_PLEASE.split(query)):
        words = split(part)
        at = next((at for at, word in enumerate(words) if word not in _LEADS or _two(words, at) in _KINDS), len(words))
        first = words[at] if at < len(words) else ""
        if kinds := READ if first in _QUESTIONS else _KINDS.get(_two(words, at)) or _KINDS.get(stem(first), 0):
            return kinds
    return 0


def _two(words: list[str], at: int) -> str:
    return stem("-".join(words[at : at + 2]))


def deeds_of(entry: ToolEntry) -> int:
    """The kinds of deed that a tool does, by the first verb of its name or of its description; 0 if there is none."""
    words = [word for word in split(entry.name) if word not in _THINGS] + split(entry.description[:60])[:3]
    return next((kinds for word in words if (kinds := _KINDS.get(stem(word), 0))), 0)


def looked_for(query: str) -> int:
    """1 if a query wants to find out something, 2 if that may be anywhere; 0 if it wants something done."""
    return 0 if not _LOOKING.match(query) else 2 if _ANYWHERE.search(query) else 1


def finds(entry: ToolEntry) -> int:
    """1 if a tool lists things, 2 if it searches for them; else 0."""
    words = frozenset(split(entry.name))
    return 2 if words & _SEARCHES else 1 if words & _LISTS else 0
