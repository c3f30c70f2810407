"""Methods that a server does not have, though it offers what they belong to: how that is told from other errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final, NamedTuple

from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.host.fields import Json, object_of
from defserve.transports.client_errors import Challenged, HttpRefusal, SignInError
from defserve.wire.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

# A request for the first page of a list has no parameters that could be wrong.
_CODES: Final = frozenset((METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS))
_STATUSES: Final = frozenset((400, 404, 405, 501))
# Servers that use another code say it in words.
_WORDS: Final = re.compile(
    r"(unknown|unsupported|unhandled|unrecogni[sz]ed|invalid|no such)\W+(?:\w+\W+){0,2}(method|request)"
    r"|(method|request)\b.{0,60}\b(unknown|unsupported|not (found|supported|known|available|allowed|handled))"
    r"|\bnot implemented\b|\bnot supported\b",
    re.IGNORECASE | re.DOTALL,
)
MAX_QUOTE: Final = 120


class ListedItems(NamedTuple):
    """What a server lists. `note` says that it lacks the method; it is empty otherwise."""

    items: list[Json]
    note: str = ""


def lacks_method(error: PeerError) -> bool:
    """Whether the error to a request without parameters means that the server does not have the method."""
    if isinstance(error, PeerGone | PeerTimeout | Challenged | SignInError):
        return False
    if isinstance(error, HttpRefusal):
        return object_of(error.data).get("status") in _STATUSES
    return error.code in _CODES or _WORDS.search(error.message[:1000]) is not None


async def list_if_known(method: str, listing: Awaitable[list[Json]]) -> ListedItems:
    """A list, empty if the server lacks the method. Raises PeerError for any other error."""
    try:
        return ListedItems(await listing)
    except PeerError as error:
        if not lacks_method(error):
            raise
        quote = " ".join(error.message.split())[:MAX_QUOTE]
        return ListedItems([], f"the server does not know {method}, which belongs to what it offers: {quote}")
