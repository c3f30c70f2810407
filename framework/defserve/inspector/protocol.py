"""What the page and its host side say to each other.

Page to host: `{"id": 1, "do": "tools.call", "with": {…}}`, and `{"do": "cancel", "of": 1}`. Host to page: any number of
`{"id": 1, "part": …}`, then `{"id": 1, "ok": …}` or `{"id": 1, "error": {"message", "fix"?, "code"?, "data"?}}`; and
`{"on": "topic", "data": …}` at any time. A frame of the host is an array of such messages. An error has `sign_in`, the
scopes to sign in with, if that would help; with none, the server says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pydantic_core import from_json

from defserve.auth.oauth import parse_oauth_challenge
from defserve.client.replies import object_or_empty, string_or_none
from defserve.core.json_values import is_object
from defserve.errors import BadArguments, DefserveError, PeerError, Refused, ToolError, UsageError

Json: TypeAlias = dict[str, Any]
FIX: Final = "\n  fix: "
CANCEL_VERB: Final = "cancel"
PAGE_LEFT_REASON: Final = "the page has left"
"""Why a request is cancelled that the page itself did not cancel."""
MAX_NUMBER: Final = 2**53
"""The largest number that a page counts with exactly."""
MAX_SCOPES: Final = 50
MAX_SCOPE_LENGTH: Final = 200
SCOPE: Final = re.compile(r"[!#-\[\]-~]+")


class BadMessage(UsageError):
    """The page said something that nobody understands."""


class PageRequest:
    """One request of the page."""

    __slots__ = ("_last", "arguments", "part")

    def __init__(self, arguments: Mapping[str, Any], part: Callable[[Any], None]) -> None:
        self.arguments, self.part, self._last = arguments, part, None
        """`part` sends something before the answer. It does not wait: a page that reads too slowly is disconnected."""

    def send_part_if_changed(self, part: Json) -> None:
        """Send a part, unless it is the same as the last one that was sent this way."""
        if part != self._last:
            self._last = part
            self.part(part)

    def get_text(self, name: str, default: str | None = None) -> str:
        """The argument `name`, which is a string. Raises BadMessage if it is missing or something else."""
        value = self.arguments.get(name, default)
        if not isinstance(value, str):
            raise BadMessage(f"the argument {name!r} is missing, or is not a text")
        return value

    def get_integer(self, name: str, default: int | None = None) -> int:
        """The argument `name`, which is a whole number that a page can have. Raises BadMessage for anything else."""
        value = self.arguments.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_NUMBER:
            raise BadMessage(f"the argument {name!r} is missing, or is not a whole number up to 2**53")
        return value

    def get_number(self, name: str) -> float | None:
        """The argument `name`, which is a number that a page can have; None if it is missing. Raises BadMessage."""
        value = self.arguments.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
            raise BadMessage(f"the argument {name!r} is not a number up to 2**53")
        return float(value)

    def get_object(self, name: str) -> Json:
        """The argument `name`, which is an object; empty if it is missing. Raises BadMessage for anything else."""
        value = self.arguments.get(name, {})
        if not is_object(value):
            raise BadMessage(f"the argument {name!r} is not an object")
        return value


def parse_page_message(text: str) -> tuple[int | None, str, Json]:
    """The id, the verb and the arguments of a message of the page. Raises BadMessage."""
    try:
        message = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}") from None
    if not is_object(message) or not isinstance(verb := message.pop("do", None), str):
        raise BadMessage('a message is an object with "do"')
    if verb == CANCEL_VERB:
        return None, verb, message
    id, arguments = message.get("id"), message.get("with", {})
    if not isinstance(id, int) or isinstance(id, bool) or abs(id) > MAX_NUMBER:
        raise BadMessage('a request needs an "id", which is a whole number')
    if not is_object(arguments):
        raise BadMessage('the arguments of a request are an object, "with"')
    return id, verb, arguments


def describe_error_for_page(error: BaseException) -> Json:
    """An exception as the page shows it. Nothing of an unexpected one but its class."""
    if not isinstance(error, DefserveError):
        return {"message": f"the inspector could not do this: {type(error).__name__}"}
    message, _, fix = str(error).partition(FIX)
    told: Json = {"message": message}
    data: Any = None
    # A client gives some errors of a server a class of their own; the answer itself is behind it.
    answered = error if isinstance(error, PeerError) else error.__cause__
    if isinstance(answered, PeerError):
        told["code"], data = answered.code, answered.data
    elif isinstance(error, Refused | ToolError):
        data = dict(error.data) if error.data else None
    if isinstance(error, BadArguments):
        told["problems"] = [{"field": problem.field, "reason": problem.reason} for problem in error.problems]
    if is_object(data) and not fix and isinstance(found := data.get("fix"), str):
        fix = found
    if fix:
        told["fix"] = fix
    if data is not None:
        told["data"] = data
    if (scopes := _missing_scopes(data)) is not None:
        told["sign_in"] = scopes
    return told


def _missing_scopes(data: Any) -> list[str] | None:
    """The scopes to sign in with, if HTTP wants a token or a better one; None if it wants something else."""
    about = object_or_empty(data)
    status, challenge = about.get("status"), string_or_none(about.get("challenge")) or ""
    said = parse_oauth_challenge(challenge)
    if status == 401 and (said.scheme or not challenge):
        return []
    if status != 403 or said.error != "insufficient_scope":
        return None
    scopes = list(said.scopes)
    return scopes if 0 < len(scopes) <= MAX_SCOPES and all(map(is_displayable_scope, scopes)) else None


def is_displayable_scope(text: Any) -> bool:
    """Whether something is a scope (RFC 6749 §3.3), and short enough to be shown."""
    return isinstance(text, str) and len(text) <= MAX_SCOPE_LENGTH and SCOPE.fullmatch(text) is not None
