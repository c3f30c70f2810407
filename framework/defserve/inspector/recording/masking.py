"""Messages, headers, addresses and command lines without their secrets, for the page and for what is copied from it.

What a secret is called and looks like is the matter of `defserve.base.redaction`. Here are the places where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from json import JSONDecoder
from typing import Any, Final
from urllib.parse import unquote

from pydantic_core import from_json, to_json

from defserve.base.redaction import REDACTION_MASK, is_secret_name, redact_text
from defserve.core.json_values import is_array, is_object

MAX_TEXT_LENGTH: Final = 4 * 1024 * 1024
MAX_NAME_LENGTH: Final = 64
SHORT_KEY: Final = 20
"""Characters. Names of members that are shorter, and are words of a program, are no secrets."""
MAX_JSON_VALUES: Final = 8
"""JSON values that are looked for in a text."""

# It has the name of a secret, and is none: it says which call a notice belongs to.
PLAIN: Final = "progressToken"
NAMING: Final = ("name", "key", "header", "field", "id")
VALUES: Final = frozenset(("value", "values"))
SCHEMAS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Members whose own members are named like fields, and describe them."""
DESCRIBING: Final = frozenset(
    "type title description format $ref pattern minLength maxLength minimum maximum minItems maxItems contentEncoding "
    "anyOf oneOf allOf not items properties required additionalProperties $defs".split()
)
"""Members of a schema that tell nothing of a value."""
LISTING: Final = frozenset(("required", "enum", "type"))
"""Arrays of names, which are no pairs of a name and a value."""
PUBLIC_HEADERS: Final = frozenset(
    "accept content-type date etag host mcp-method mcp-name traceparent user-agent".split()
)
"""Headers that often look random, and are no secret. What looks like a known kind of secret is masked in them too."""

_MEMBER: Final = re.compile(r"session[_\-. ]?id|\A(?:sess|sid|sig|csrf|xsrf)\Z|amz[_-]signature", re.IGNORECASE)
_HEADER: Final = re.compile(
    r"auth(?!enticate|or(?!iz)|entication-info)|token|key|secret|cookie|sess|signature|passw|pwd|csrf|xsrf"
    r"|(?:\A|[^a-z])(?:sig|sid|code|pass)\Z",
    re.IGNORECASE,
)
# Only bounded repeats: hostile text must not make this slow.
_PARAMETER: Final = re.compile(r"([?&;#])([\w.~%\-\[\]]{1,64})=([^&;#\s\"'<>\\]{1,4096})")
_USER: Final = re.compile(r"(://)[^\s/@\"'<>\[]{16,256}@")
_NESTED: Final = re.compile(
    r"((?:secret|passw|token|cookie|credential|authorization|api[_-]?key|private[_-]?key|session[_-]?id)[\w-]{0,40}"
    r"\\{0,3}[\"']?\s{0,4}[:=]\s{0,4})(?!\[redacted)(?:[\[{][^\]}]{0,4096}[\]}]{0,4}|\\{0,3}\"[^\"]{1,4096}\")",
    re.IGNORECASE,
)
_SESSION: Final = re.compile(
    r"(session[_-]?id\\{0,3}[\"']?\s{0,4}[:=]\s{0,4}\\{0,3}[\"']?)[^\s\"'&,;}\\\[]{1,4096}", re.IGNORECASE
)
_RUN: Final = re.compile(r"[\w+/=~-]{20,4096}")
_OPENING: Final = re.compile(r"[\[{]")
_DECODER: Final = JSONDecoder()
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/\r\n]*+|[\w-]*+)={0,2}[\r\n]*+", re.ASCII)


def mask_message(body: bytes) -> Any:
    """A message as JSON data with its secrets masked. What is not JSON, or was cut, is a text."""
    try:
        return mask_value(from_json(body))
    except ValueError:
        pass
    try:
        # What was cut is read as far as it goes: secrets are found by their place better than by their look.
        return to_json(mask_value(from_json(body, allow_partial="trailing-strings")), inf_nan_mode="null").decode()
    except ValueError:
        return mask_text(body.decode(errors="replace"))


def mask_value(value: Any) -> Any:
    """The same value. All under a secret name is masked, and what looks like a secret in a text is.

    A schema may describe a field called "password": its description is shown, and no value in it.
    """
    return _mask_named_value(value, "")


def mask_value_at(root: Any, names: Sequence[str], value: Any) -> tuple[list[str], Any]:
    """A value that stands in `root` under these names, masked as it would be there. The names are masked, too.

    Only what can tell that it is a secret is looked at: the names above it, and the names beside each of them.
    """
    containers: list[Any] = []
    for name in names:
        containers.append(root)
        root = _below(root, name)
    kept: Any = value
    for container, name in zip(reversed(containers), reversed(names), strict=True):
        if is_array(container):
            is_pair = len(container) == 2 and name == "1" and isinstance(container[0], str)
            kept = [container[0], kept] if is_pair else [kept]
        else:
            kept = {**_naming(container), name: kept}
    shown, path = mask_value(kept), list[str]()
    for container, name in zip(containers, names, strict=True):
        if is_array(container):
            path.append(name)
            shown = shown[-1]
        else:
            place = [*_naming(container), name].index(name)
            key, shown = list(shown.items())[place]
            path.append(key)
    return path, shown


def _below(container: Any, name: str) -> Any:
    if is_object(container):
        return container.get(name)
    place = int(name) if is_array(container) and name.isdecimal() else None
    return container[place] if place is not None and place < len(container) else None


def _naming(container: Any) -> dict[str, str]:
    """The members of an object that say what its value is."""
    members = container if is_object(container) else {}
    return {key: name for key in NAMING if isinstance(name := members.get(key), str) and len(name) <= MAX_NAME_LENGTH}


def mask_text(text: str) -> str:
    """A text without secrets. Where it has JSON in it, they are found there by their names too."""
    if len(text) > 4096 and _BASE64.fullmatch(text):
        return text  # a picture or a sound
    text = _json_masked(text)
    if "=" in text:
        text = _PARAMETER.sub(_parameter, text)
    if "@" in text:
        text = _USER.sub(rf"\1{REDACTION_MASK}@", text)
    if "[" in text or "{" in text or '"' in text:
        text = _NESTED.sub(rf"\1{REDACTION_MASK}", text)
    if "session" in text.lower():
        text = _SESSION.sub(rf"\1{REDACTION_MASK}", text)
    return redact_text(text, limit=MAX_TEXT_LENGTH, multiline=True)


def _json_masked(text: str) -> str:
    """A text with the secrets masked in the first JSON values of it. The last of them may be cut."""
    parts, done, place = list[str](), 0, 0
    for _ in range(MAX_JSON_VALUES):
        if (found := _OPENING.search(text, place)) is None:
            break
        start = found.start()
        try:
            value, place = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            try:
                value, place = from_json(text[start:], allow_partial="trailing-strings"), len(text)
            except ValueError:
                place = start + 1
                continue
        if (shown := mask_value(value)) != value:
            indent = 2 if "\n" in text[start:place] else None
            parts += [text[done:start], to_json(shown, indent=indent, inf_nan_mode="null").decode()]
            done = place
    return "".join([*parts, text[done:]])


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with secrets masked by their name and by their look. Of a long one the last two characters are left."""
    return {name: _header(name, value) for name, value in headers.items()}


def mask_command_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with secrets masked: in addresses, `--token x`, `--token=x`, `TOKEN=x`, `Name: x`."""
    shown: list[str] = []
    hides = False
    for word in words:
        name, mark, value = _split(word)
        is_option = word.startswith("-")
        if hides and not is_option:
            shown.append(REDACTION_MASK)
        elif mark and value and (_is_secret(name) or ((is_option or mark == ":") and _HEADER.search(name))):
            shown.append(f"{name}{mark}{' ' if mark == ':' else ''}{REDACTION_MASK}")
        else:
            shown.append(mask_text(word))
        hides = is_option and not mark and _HEADER.search(name) is not None
    return shown


def mask_address(address: str, words: Iterable[str]) -> str:
    """An address, or a command of these words, without the secrets of either."""
    for word, shown in zip(words := tuple(words), mask_command_words(words), strict=True):
        if word != shown:
            address = address.replace(word, shown)
    return mask_text(address)


def _is_secret(name: str) -> bool:
    return is_secret_name(name) or _MEMBER.search(name) is not None


def _mask_named_value(value: Any, of: str) -> Any:
    """A value that stands under the name `of`."""
    if is_object(value):
        pair = any(isinstance(name := value.get(key), str) and _names_secret(name) for key in NAMING)
        return _object((_key(name), _member(name, each, of, pair)) for name, each in value.items())
    if is_array(value):
        if of not in LISTING and len(value) == 2 and isinstance(name := value[0], str) and _names_secret(name):
            return [name, _hidden(value[1], "")]
        return [_mask_named_value(each, of) for each in value]
    return mask_text(value) if isinstance(value, str) else value


def _names_secret(name: str) -> bool:
    return len(name) <= MAX_NAME_LENGTH and (_is_secret(name) or ("-" in name and _HEADER.search(name) is not None))


def _member(name: str, value: Any, of: str, pair: bool) -> Any:
    if name == PLAIN and not is_object(value) and not is_array(value):
        return value
    if _is_secret(name):
        if of in SCHEMAS and is_object(value):
            return _object(
                (word, _mask_named_value(each, word))
                if word in DESCRIBING
                else (_hidden_key(word), _hidden(each, word))
                for word, each in value.items()
            )
        return _hidden(value, name)
    return _hidden(value, name) if pair and name in VALUES else _mask_named_value(value, name)


def _hidden(value: Any, name: str) -> Any:
    """A value of which only the shape is shown. Numbers of tokens are no secret."""
    if is_object(value):
        return _object((_hidden_key(key), _hidden(each, name)) for key, each in value.items())
    if is_array(value):
        return [_hidden(each, name) for each in value]
    is_count = isinstance(value, int | float) and name.lower().endswith("tokens")
    return value if value is None or isinstance(value, bool) or is_count else REDACTION_MASK


def _object(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Members by their names. Names that are the same once they are masked are numbered: no member is lost."""
    made: dict[str, Any] = {}
    for name, value in members:
        count, first = 1, name
        while name in made:
            count += 1
            name = f"{first} ({count})"
        made[name] = value
    return made


def _key(name: str) -> str:
    """The name of a member. It may itself be a secret: people keep things by their tokens."""
    return name if len(name) < SHORT_KEY and name.isidentifier() else mask_text(name)


def _hidden_key(name: str) -> str:
    """The name of a member that stands under the name of a secret."""
    return name if len(name) < SHORT_KEY and name.isidentifier() else _RUN.sub(_random, mask_text(name))


def _header(name: str, value: str) -> str:
    if is_secret_name(name) or _HEADER.search(name):
        return f"…{value[-2:]}" if len(value) >= 24 and " " not in value else REDACTION_MASK
    shown = mask_text(value)
    return shown if name.lower() in PUBLIC_HEADERS else _RUN.sub(_random, shown)


def _random(found: re.Match[str]) -> str:
    """A long run of letters and digits is random; words alone are not."""
    run = found[0]
    return REDACTION_MASK if any(map(str.isdigit, run)) and any(map(str.isalpha, run)) else run


def _parameter(found: re.Match[str]) -> str:
    mark, name, _ = found.groups()
    plain = unquote(name)
    return f"{mark}{name}={REDACTION_MASK}" if _is_secret(plain) or _HEADER.search(plain) else found[0]


def _split(word: str) -> tuple[str, str, str]:
    """The name, `=` or `:`, and the value of a word of a command line."""
    found = re.match(r"([\w.-]{1,64})(?:(=|:(?=\s))\s{0,4}(.*))?\Z", word, re.DOTALL)
    return (found[1], found[2] or "", found[3] or "") if found else ("", "", "")
