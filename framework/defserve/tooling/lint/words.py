"""The words that rules look for: vague names, harmful verbs, phrases that give a model orders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

VAGUE: Final = frozenset(
    """action api call check command data do exec execute foo func function get go handle handler helper info invoke
    manage misc my_tool new object op operation process query request result run send set stuff test thing tool
    tool1 update util utils work""".split()
)

# The first verb of a name → what it does to the world.
DESTROYS: Final = frozenset(
    """clear delete destroy drop erase format kill nuke overwrite purge remove reset revoke rm shutdown terminate
    truncate uninstall unlink wipe""".split()
)
CHANGES: Final = frozenset(
    """add append apply buy cancel charge commit create deploy edit insert install merge move order pay patch post
    publish push put rename replace save send set store transfer update upload write""".split()
)
RUNS: Final = frozenset({"eval", "evaluate", "exec", "execute", "run", "shell", "spawn"})
RUN_WHAT: Final = frozenset({"bash", "cmd", "code", "command", "process", "python", "script", "shell", "sql"})

# The last word of a parameter's name → the type that checks it.
TELLING: Final[Mapping[str, str]] = {
    **dict.fromkeys(("command", "cmd", "commandline", "shell"), "ShellCommand"),
    **dict.fromkeys(("url", "uri", "href", "webhook", "endpoint"), "PublicUrl"),
    **dict.fromkeys(("code", "script", "program", "snippet"), "Annotated[str, Code()]"),
    **dict.fromkeys(
        ("path", "file", "filename", "filepath", "directory", "dir", "folder"), "Annotated[Path, Within(root)]"
    ),
}
# Last words that mean something else: `url_id` names a row, `file_count` is a number.
HARMLESS: Final = frozenset({"id", "ids", "name", "type", "kind", "count", "size", "format", "extension", "status"})
# `country_code` is not a program.
CODES: Final = frozenset(
    """area bar bank country coupon currency dial discount error exit hs http iata icao language lang locale
    order pass phone pin post postal product promo qr region response return sort state status swift tax ticker
    time verification voucher zip""".split()
)

# Phrases of a description that do not describe the tool, but try to steer the model.
INJECTIONS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (what, re.compile(pattern, re.IGNORECASE))
    for what, pattern in (
        (
            "overrides instructions",
            r"\b(ignore|disregard|forget|override)\b[^.!?]{0,30}\b(previous|prior|above|earlier|all|any|other|system)\b"
            r"[^.!?]{0,30}\b(instructions?|prompts?|rules?|messages?|guidelines?)\b",
        ),
        (
            "hides something from the person",
            r"\b(do not|don't|never|without)\b[^.!?]{0,20}\b(tell|telling|inform|informing|mention|mentioning|notify|"
            r"notifying|reveal|revealing|show|showing|alert|alerting)\b[^.!?]{0,30}\b(users?|person|human|them|anyone)\b",
        ),
        (
            "pretends to be markup",
            r"<\s*+/?\s*+(important|system|instructions?|secret|admin|assistant|user)\s*+/?\s*+>",
        ),
        ("mentions the system prompt", r"\b(system prompt|hidden instructions?|developer message)\b"),
        ("gives the model a role", r"\b(you are now|act as|pretend (to be|you are)|from now on,? you)\b"),
        (
            "orders other calls",
            r"\b(before|after|instead of)\b[^.!?]{0,20}\b(using|calling|invoking|running)\b[^.!?]{0,30}"
            r"\b(this|any|other|another)\b[^.!?]{0,20}\btools?\b[^.!?]{0,80}\b(must|always|first|read|send|call|pass)\b",
        ),
        (
            "asks for secrets",
            r"\b(read|send|include|attach|upload|pass|provide|forward|exfiltrate)\b[^.!?]{0,40}"
            r"(\.ssh\b|id_rsa|\.env\b|\bapi[ _-]?keys?\b|\bpasswords?\b|\bcredentials?\b|\bprivate keys?\b"
            r"|\bconversation history\b|\bchat history\b)",
        ),
        ("is secretive", r"\b(secretly|covertly|silently (send|forward|copy|call))\b"),
    )
)

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(name: str) -> list[str]:
    """`deleteUserFile`, `delete_user-file` → delete, user, file."""
    return [word.lower() for word in _WORD.findall(name)]
