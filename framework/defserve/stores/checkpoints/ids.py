"""The id of a checkpoint: unguessable, and bound by a MAC to its owner, its feature set, its content and its proof.

So a client that returns a content with its id cannot have changed it, and an id is useless to another owner. The MAC
is over the content in canonical JSON: sorted names, no spaces, whole numbers without a point. That is necessary because
JSON libraries write the same value in different ways.

A checkpoint is *proved* if the server made its whole line, from the first checkpoint on. The MAC of a proved one has a
label of its own. All ids of 0.1.0 have the other label: it signed what callers brought like its own, so they prove
nothing.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from json import encoder
from typing import Any, Final

from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array, is_object

PREFIX: Final = "chk_"
MIN_KEY: Final = 16
RANDOM: Final = 15
"""Bytes; with those of the MAC a multiple of 3, so that every id has exactly one text."""
_DRAWN: Final = 256
_MAC: Final = 18
_ID: Final = re.compile(r"chk_[A-Za-z0-9_-]{44}")
_LABELS: Final = {False: b"defserve checkpoint v1", True: b"defserve checkpoint v2 proved"}
"""Is it proved → what the MAC begins with."""

DIGEST_PREFIX: Final = "dig_"

_MAYBE_WHOLE: Final = re.compile(r"[0-9]\.0(?![0-9])|[0-9]e\+")


def _encoder() -> Callable[[Any], str]:
    """The encoder of `json`, made once: `json` makes one for every text, and that takes longer than a short text."""
    json_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    make: Any = getattr(encoder, "c_make_encoder", None)
    write_text: Any = getattr(encoder, "encode_basestring", None)
    if make is None or write_text is None:
        return json_encoder.encode
    write = make(None, json_encoder.default, write_text, None, ":", ",", True, False, False)
    return lambda value: "".join(write(value, 0))


_encode: Final = _encoder()


def canonical(value: Any) -> bytes:
    """The canonical text of a JSON value. Raises ValueError for what JSON cannot hold: infinities, lone surrogates."""
    try:
        text = _encode(value)
        # Searching the text is cheaper than walking through the value, which hardly any value needs.
        if (".0" in text or "e+" in text) and _MAYBE_WHOLE.search(text):
            text = _encode(_with_whole_numbers(value))
        return text.encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a JSON value: {error}") from None


def make_id(
    key: bytes, principal: str, feature_set: str, content: bytes, random: bytes, *, is_proved: bool = False
) -> str:
    """The id of a new checkpoint. `content` is its canonical JSON, or empty if it has none; `random` is fresh."""
    if len(key) < MIN_KEY or len(random) != RANDOM:
        raise UsageError(f"a checkpoint id needs a key of at least {MIN_KEY} bytes and {RANDOM} random bytes")
    return PREFIX + urlsafe_b64encode(random + _mac(key, random, principal, feature_set, content, is_proved)).decode()


class FreshRandom:
    """The random bytes of ids, drawn many at a time.

    Asking the system lets another thread run. If that is a store's writer, it starts with the first of many commits
    that are about to come, and they share no fsync.
    """

    __slots__ = ("_parts", "_pid")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pid = 0

    def take(self) -> bytes:
        """Bytes that nobody else gets, in any thread or forked process."""
        if self._pid != (pid := os.getpid()):
            self._parts, self._pid = [], pid
        try:
            return self._parts.pop()
        except IndexError:
            drawn = os.urandom(RANDOM * _DRAWN)
            self._parts += (drawn[at : at + RANDOM] for at in range(RANDOM, len(drawn), RANDOM))
            return drawn[:RANDOM]


def is_id(text: str) -> bool:
    """Whether this could be a checkpoint's id."""
    return _ID.fullmatch(text) is not None


def digest_name(content: bytes) -> str:
    """The name under which a tree keeps the id of its latest proved checkpoint with this content. No id of its own."""
    # 15 bytes are short in the store and unique enough: who finds a checkpoint by it compares the contents.
    return DIGEST_PREFIX + urlsafe_b64encode(sha256(content).digest()[:15]).decode()


def verify_id(
    key: bytes, id: str, principal: str, feature_set: str, content: bytes, *, is_proved: bool = False
) -> bool:
    """Whether this id was made with this key for exactly this owner, feature set, content and proof."""
    if not is_id(id):
        return False
    raw = urlsafe_b64decode(id.removeprefix(PREFIX))
    return hmac.compare_digest(raw[RANDOM:], _mac(key, raw[:RANDOM], principal, feature_set, content, is_proved))


def _mac(key: bytes, random: bytes, principal: str, feature_set: str, content: bytes, is_proved: bool) -> bytes:
    # Each part has its length before it, so that no two lists of parts have the same bytes.
    said = b"".join(
        (_framed(_LABELS[is_proved]), _framed(random), _owner_bytes(principal, feature_set), _framed(content))
    )
    # `hmac.digest` takes three times as long, and lets another thread run: see `FreshRandom`.
    return hmac.new(key, said, "sha256").digest()[:_MAC]


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8) + part


@lru_cache(maxsize=1024)
def _owner_bytes(principal: str, feature_set: str) -> bytes:
    return _framed(principal.encode()) + _framed(feature_set.encode())


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if is_object(value):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    if is_array(value):
        return [_with_whole_numbers(item) for item in value]
    return value
