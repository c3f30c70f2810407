"""Values made safe for a log, an audit event or a trace: no secrets, no control characters, nothing very long.

Every layer may use it; of ours it imports `base` alone. A secret is recognised by its name (a key, a header), by its
type (`SecretStr` and whatever else has `get_secret_value`), and by its look: `Bearer …`, JSON web tokens, private keys,
`password=…` inside a text. Other secrets are not recognised, so show no more than needed.

A module that logs has its logger from `get_logger`: what an exception says is masked there, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache, lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from defserve.base.hidden_characters import replace_hidden_characters

if TYPE_CHECKING:
    import logging

REDACTION_MASK: Final = "[redacted]"

DEPTH: Final = 12
ITEMS: Final = 100
"""Members of one object or array that are shown."""
NODES: Final = 2_000
"""Values that are shown in all."""
MAX_REDACTED_TEXT_LENGTH: Final = 2_048
"""Characters of one text that are shown."""
MAX_TRACEBACK_LENGTH: Final = 32_000

_NAMES: Final = (
    r"authorization|token|secret|password|passwd|passphrase|passcode|cookie|credential|client[_\- ]?assertion"
    r"|(?:api|access|private|signing|encryption)[_\- ]?key|mcp[_\- ]?session[_\- ]?id"
)
_SECRET_NAME: Final = rf"(?i){_NAMES}|\A(?:auth|bearer|jwt|otp|pass|pin|pw|pwd)\Z"
_COUNTED: Final = r"(?i)tokens\Z|token_?(?:count|limit|budget)"

_VALUE: Final = r"(?:\\{0,3}\"[^\"]{0,4096}\"|'[^']{0,4096}'|\\{0,3}[^\s,;&\"'}\])\\]{1,4096})"


class _Look(NamedTuple):
    """What a secret looks like, and its replacement. A text without one of the words (in lower case) has no match.

    Only bounded repeats: hostile text must not make this slow.
    """

    words: tuple[str, ...]
    pattern: str
    left: str = REDACTION_MASK


_LOOKS: Final = (
    _Look(
        ("private key-----",),
        r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)",
    ),
    _Look(
        ("cookie", "authorization"),
        # A value in quotes is for the pattern below: blanks before its quote are no value.
        r"(?i)((?:cookie|authorization)\\?[\"']?\s{0,4}[:=]\s{0,4})(?!\s{0,64}\\?[\"'])[^\r\n\"'}]{1,4096}",
        rf"\1{REDACTION_MASK}",
    ),
    _Look(
        ("bearer", "basic", "digest", "negotiate"),
        r"(?i)\b(bearer|basic|digest|negotiate)\s{1,4}[\w.~+/=:-]{6,4096}",
        rf"\1 {REDACTION_MASK}",
    ),
    _Look(("eyj",), r"\beyJ[\w-]{8,4096}(?:\.[\w-]{0,4096}){0,4}"),
    _Look(("sk-", "pk-", "rk-", "sk_", "pk_", "rk_"), r"\b[spr]k[-_][\w-]{16,256}"),
    _Look(
        ("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "_pat_", "glpat"),
        r"\b(?:gh[opsur]_\w{20,256}|github_pat_\w{20,256}|glpat-[\w-]{16,64})",
    ),
    _Look(
        ("xox", "akia", "asia", "aiza"),
        r"\b(?:xox[a-z]-[\w-]{10,256}|A[KS]IA[0-9A-Z]{16}\b|AIza[\w-]{30,64})",
    ),
    _Look(("://",), r"(://)[^\s/@:]{0,256}:[^\s/@]{1,256}@", rf"\1{REDACTION_MASK}@"),
    _Look(
        ("authorization", "token", "secret", "pass", "pwd", "cookie", "credential", "assertion", "key", "session"),
        rf"(?i)((?:{_NAMES}|\bpwd)[\w-]{{0,40}}\\{{0,3}}[\"']?\s{{0,4}}(?:=>|[:=])\s{{0,4}})(?!\[redacted\]){_VALUE}",
        rf"\1{REDACTION_MASK}",
    ),
)

_WORDS: Final = tuple({word for look in _LOOKS for word in look.words})

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Standard modules whose values hold no secret, so `str(value)` may be shown.
_PLAIN: Final = frozenset(("datetime", "decimal", "fractions", "ipaddress", "pathlib", "uuid"))


def redact(value: Any, *, by_look: bool = True) -> Any:
    """The value as plain JSON data that may be shown in logs. Never raises.

    Values under a secret name are masked. Deep, long or large values are cut, and unprintable characters are escaped.
    An object of an unknown class is shown as its class alone, because its text could say anything.

    Not `by_look`, texts that only look like secrets are shown: whoever has to judge a text must see all of it.
    """
    return _Walk(redact_text if by_look else _cut).redact_value(value, 0)


def redact_text(text: str, *, limit: int = MAX_REDACTED_TEXT_LENGTH, multiline: bool = False) -> str:
    """A text without what looks like a secret, cut to `limit`, on one line unless it is `multiline`."""
    # Read somewhat more than is shown, so that a secret across the edge is recognised.
    kept = text[: limit + 512]
    lower = kept.lower()
    # Most texts have none of the words; they are done here.
    words = [word for word in _WORDS if word in lower]
    for look in _LOOKS if words else ():
        if any(word in words for word in look.words):
            kept = _compile(look.pattern).sub(look.left, kept)
    shown = kept[:limit]
    shown = "\n".join(map(escape_unprintable, shown.splitlines())) if multiline else escape_unprintable(shown)
    return shown if len(text) <= limit else f"{shown}… ({len(text)} characters)"


def get_logger(part: str = "") -> logging.Logger:
    """The logger `defserve`, or a part of it: `get_logger("auth")` is `defserve.auth`.

    Its handlers get the traceback of `log.exception(…)` or `exc_info=…` as `exc_text`, and an exception among the
    arguments as a text: without what looks like a secret, and never the exception itself. `extra={"secrets": […]}` are
    secrets that have no look of their own, such as the token of a request; the traceback doesn't show them.
    """
    import logging

    log = logging.getLogger(f"defserve.{part}" if part else "defserve")
    log.addFilter(_redact_exceptions)
    return log


def _redact_exceptions(record: logging.LogRecord) -> bool:
    secrets: Collection[str] = record.__dict__.pop("secrets", ())
    error = record.exc_info[1] if record.exc_info else None
    record.exc_info = None
    if error is not None:
        record.exc_text = _try_to_format(error, lambda: _format_traceback(error, secrets))
    if isinstance(args := record.args, tuple) and any(isinstance(each, BaseException) for each in args):
        record.args = tuple(_redact_argument(each) if isinstance(each, BaseException) else each for each in args)
    return True


def _redact_argument(error: BaseException) -> str:
    return _try_to_format(error, lambda: redact_text(str(error), multiline=True))


def _try_to_format(error: BaseException, format: Callable[[], str]) -> str:
    try:
        return format()
    except Exception:  # of an author's own text or attribute; whoever logs must not fail with it
        return f"{type(error).__name__} (it cannot be shown)"


def _format_traceback(error: BaseException, secrets: Collection[str]) -> str:
    import traceback

    text = "".join(traceback.format_exception(error)).rstrip()
    for secret in (each for each in secrets if len(each) > 7):  # a shorter one would be found in ordinary words
        text = text.replace(secret, REDACTION_MASK)
    return redact_text(text, limit=MAX_TRACEBACK_LENGTH, multiline=True)


def _cut(text: str, *, limit: int = MAX_REDACTED_TEXT_LENGTH) -> str:
    return (
        escape_unprintable(text)
        if len(text) <= limit
        else f"{escape_unprintable(text[:limit])}… ({len(text)} characters)"
    )


def escape_unprintable(text: str) -> str:
    """A text in which control characters, line ends and marks that reorder or hide text are escaped."""
    return text if text.isascii() and text.isprintable() else replace_hidden_characters(text, _escape_character)


def escape_unprintable_json(text: str) -> str:
    """JSON text in which the same characters are escaped as JSON does it: its value is the same. Line ends stay."""
    return replace_hidden_characters(text, _escape_in_json)


def escape_unprintable_lines(text: str) -> str:
    """A text of many lines, escaped but for line ends and tabs, which are layout."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(escape_unprintable, line.split("\t"))) for line in lines)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name (a key, a header, a parameter) is a secret."""
    return _has_secret_word(name) if len(name) <= 64 else _compile(_SECRET_NAME).search(name) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    """Compiled when the first text needs it: a program that starts has nothing to hide yet."""
    return re.compile(pattern)


# The same names come again and again, and a cache lookup takes a tenth of the time.
@lru_cache(1024)
def _redact_name(name: str) -> str:
    return redact_text(name)


@lru_cache(1024)
def _has_secret_word(name: str) -> bool:
    return _compile(_SECRET_NAME).search(name) is not None


def _escape_in_json(char: str) -> str:
    # Outside of strings JSON has no such characters but line ends, which are its layout.
    if char in "\n\r\t":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _escape_character(char: str) -> str:
    code = ord(char)
    return _SHORT.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


class _Walk:
    """One pass over one value. `left` is the number of values that may still be shown, `text` shows a text."""

    __slots__ = ("left", "text")

    def __init__(self, text: Callable[..., str]) -> None:
        self.left, self.text = NODES, text

    def redact_value(self, value: Any, depth: int) -> Any:
        self.left -= 1
        try:
            return self._by_type(value, depth)
        except Exception:  # an author's own iteration, comparison or text
            return _class_of(value)

    def _by_type(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, str):
            return self.text(str(value))
        if isinstance(value, int):
            return int(value) if value.bit_length() <= 256 else f"<integer of {value.bit_length()} bits>"
        if isinstance(value, float):
            return float(value) if isfinite(value) else str(float(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return f"<{memoryview(cast('bytes', value)).nbytes} bytes>"
        if hasattr(value, "get_secret_value"):
            return REDACTION_MASK
        if isinstance(value, BaseException):
            return self.text(f"{type(value).__name__}: {value}")
        if type(value).__module__.partition(".")[0] in _PLAIN:
            return self.text(str(value))
        if depth >= DEPTH:
            return "<nested too deep>"
        return self._members(value, depth)

    def _members(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._object(cast("Mapping[Any, Any]", value), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._array(cast("Collection[Any]", value), depth)
        fields = _fields(value)
        return _class_of(value) if fields is None else self._object(fields, depth)

    def _object(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        pair = _is_named_pair(fields)
        for count, (key, value) in enumerate(fields.items()):
            if count >= ITEMS or self.left <= 0:
                shown["…"] = f"{len(fields) - count} more"
                break
            name = _name(key)
            hidden = is_secret_field(name, value) or (pair and name == "value")
            is_usual = self.text is redact_text and len(name) <= 64
            told = _redact_name(name) if is_usual else self.text(name, limit=256)
            shown[told] = REDACTION_MASK if hidden else self.redact_value(value, depth + 1)
        return shown

    def _array(self, items: Collection[Any], depth: int) -> list[Any]:
        shown: list[Any] = []
        header = _is_header(items)
        for count, item in enumerate(items):
            if count >= ITEMS or self.left <= 0:
                shown.append(f"… {len(items) - count} more")
                break
            shown.append(REDACTION_MASK if header and count else self.redact_value(item, depth + 1))
        return shown


def _is_header(items: Collection[Any]) -> bool:
    """Whether this is `("authorization", "…")`."""
    if len(items) != 2 or not all(isinstance(item, str | bytes) for item in items):
        return False
    return is_secret_name(_name(next(iter(items))))


def is_secret_field(name: str, value: Any) -> bool:
    """Whether a value is a secret because of its own name. A count of tokens is none."""
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return False
    return not (isinstance(value, int | float) and _compile(_COUNTED).search(name))


def _is_named_pair(fields: Mapping[Any, Any]) -> bool:
    """Whether this is `{"name": "Authorization", "value": …}`."""
    names = (fields.get(key) for key in ("name", "key", "header"))
    return "value" in fields and any(isinstance(name, str) and is_secret_name(name) for name in names)


def _name(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _fields(value: Any) -> Mapping[str, Any] | None:
    """The members of a dataclass or pydantic model; None for anything else."""
    kind: Any = cast("Any", type(value))
    names: Any = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__pydantic_fields__", None)
    return {name: getattr(value, name, None) for name in names} if names else None


def _class_of(value: Any) -> str:
    return f"<{type(value).__name__}>"
