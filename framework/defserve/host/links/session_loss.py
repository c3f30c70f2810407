"""Whether a server says that it does not know a session. The specification has one way (404), servers have many."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from defserve.errors import PeerError
from defserve.transports.client_errors import HttpRefusal
from defserve.wire.messages import METHOD_NOT_FOUND

GONE: Final = frozenset((404, 410))
UNCLEAR: Final = frozenset((400, 503))
"""They mean other things too, so the words decide."""
CODES: Final = frozenset((-32000, -32001))

WORDS: Final = re.compile(
    r"\bsession(?:[ _-]?id)?\b.*\b(?:not found|unknown|invalid|expired|terminated|closed|ended|gone|missing|required"
    r"|not valid|no longer|does not exist|not exist)\b"
    r"|\b(?:unknown|invalid|expired|terminated|missing|no valid|no active|no such|not find|not found)\b.*\bsession"
    r"|\bserver not initialized\b",
    re.IGNORECASE | re.DOTALL,
)
LONGEST_SEARCHED: Final = 1000


def refuses_session(status: int, refusal: PeerError, words: str) -> bool:
    """Whether an HTTP refusal of a message in a session means that the session is over."""
    if status in GONE:
        return refusal.code != METHOD_NOT_FOUND
    plain = isinstance(refusal, HttpRefusal) or refusal.code in CODES
    return status in UNCLEAR and plain and _says_so(words)


def answers_without_session(error: Mapping[str, Any]) -> bool:
    """Whether an answer with an error means that. It came as an answer, so the request may have run."""
    return error.get("code") in CODES and _says_so(str(error.get("message")))


def _says_so(words: str) -> bool:
    return WORDS.search(words[:LONGEST_SEARCHED]) is not None
