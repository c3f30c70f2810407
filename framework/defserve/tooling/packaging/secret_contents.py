"""Secrets inside files: private keys, tokens by their well-known forms, and what our own stores write under any name.

Each form is long and specific, so ordinary text is not taken for a secret. A secret without a form of its own, such as
a password, is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO, Final, NamedTuple

CHUNK: Final = 1024 * 1024
OVERLAP: Final = 8 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
"""How much of one file is looked at."""


class SecretForm(NamedTuple):
    """How a secret looks. A text without one of the words has no match; looking for a word is fast."""

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _form(words: bytes, *patterns: bytes) -> SecretForm:
    """A form whose words are separated by blanks."""
    return SecretForm(tuple(words.split()), re.compile(b"|".join(patterns), re.DOTALL))


def _token(words: bytes, *patterns: bytes) -> SecretForm:
    """The same for a token that stands alone."""
    return _form(words, rb"(?<![A-Za-z0-9_-])(?:%s)(?![A-Za-z0-9_-])" % b"|".join(patterns))


FORMS: Final[Mapping[str, SecretForm]] = {
    # With the beginning of the key itself: the line alone is also in programs that look for keys.
    "a private key": _form(
        b"-----BEGIN",
        rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:(?!%(key)s)(?:\\++[nr]|[\s\"'+,>#*/|]|[A-Za-z-]{3,20}: (?:(?!%(key)s)[^\r\n\\]){0,200}+)){0,40}+%(key)s"
        % {b"key": rb"[A-Za-z0-9+/=]{40}"},
    ),
    "an AWS key": _form(
        b"AKIA ASIA aws_secret_access_key AWS_SECRET_ACCESS_KEY",
        rb"(?<![A-Za-z0-9])A[KS]IA(?![A-Z0-9]{0,9}EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])",
        rb"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY)[\"']?\s{0,4}[=:]\s{0,4}[\"']?"
        rb"(?![A-Za-z0-9/+]{0,33}EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    ),
    "a GitHub token": _token(
        b"gho_ ghp_ ghr_ ghs_ ghu_ github_pat_",
        rb"gh[opsur]_[A-Za-z0-9]{36,255}",
        rb"github_pat_[A-Za-z0-9_]{50,255}",
    ),
    "a GitLab token": _token(b"glpat- gldt- glrt- glptt-", rb"gl(?:pat|dt|rt|ptt)-[A-Za-z0-9_-]{20,64}"),
    "an API key of a model": _token(
        b"sk-", rb"sk-[A-Za-z0-9]{20,200}", rb"sk-(?:ant|proj|svcacct|or)-[A-Za-z0-9_-]{24,255}"
    ),
    "a Stripe key": _token(b"k_live_", rb"[rs]k_live_[A-Za-z0-9]{20,200}"),
    "a Slack token": _form(
        b"xox xapp- hooks.slack.com",
        rb"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,250}",
        rb"(?<![A-Za-z0-9])xapp-[0-9]-[A-Za-z0-9-]{20,250}",
        rb"hooks\.slack\.com/services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,30}",
    ),
    "a Google key": _token(
        b"AIza GOCSPX- ya29.",
        rb"AIza[A-Za-z0-9_-]{35}",
        rb"GOCSPX-[A-Za-z0-9_-]{28}",
        rb"ya29\.[A-Za-z0-9_-]{60,2000}",
    ),
    "a token of a package index": _form(
        b"pypi-AgE npm_ _auth",
        rb"(?<![A-Za-z0-9])(?:pypi-AgE[A-Za-z0-9_-]{40,1000}|npm_[A-Za-z0-9]{36}(?![A-Za-z0-9]))",
        rb":_(?:auth|authToken|password)\s{0,4}=\s{0,4}[\"']?[A-Za-z0-9+/=_-]{16,1000}",
    ),
    "a Hugging Face token": _token(b"hf_", rb"hf_[A-Za-z0-9]{34,64}"),
    "an API key of defserve": _form(b".", rb"(?<=[^A-Za-z0-9_-][0-9a-f]{16})\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    "a secret of defserve": _form(
        b"DEFSERVE_",
        rb"DEFSERVE_(?:SECRET|KEYS_PEPPER|AUDIT_KEY)[\"']?\s{0,4}[=:]\s{0,4}[\"']?[A-Za-z0-9_/+=-]{32,1000}",
    ),
    "a file of API keys": _form(b'"hash"', rb'"hash":\s{0,8}"[0-9a-f]{64}",\s{0,16}"id":\s{0,8}"[0-9a-f]{16}"'),
    "an audit log": _form(
        b'"mac":"',
        rb'"prev":"[0-9a-f]{64}","seq":[1-9][0-9]{0,17},"mac":"[0-9a-f]{64}"\}',
        rb'"mac":"[0-9a-f]{64}","seq":[0-9]{1,18},"sig":"[0-9a-f]{64}"',
    ),
    "a database of a server": _form(b"SQLite", rb'\A\nSQLite format 3\0.{0,16000}CREATE TABLE "?entries"? \('),
}
"""What a secret is → how it looks. A text begins with a line break here."""


def secret_kind(file: BinaryIO) -> str | None:
    """What the first secret in a file is. None if nothing looks like one in the first MAX_BYTES."""
    kept, read = b"\n", 0
    while read < MAX_BYTES and (chunk := file.read(CHUNK)):
        read += len(chunk)
        data = kept + chunk
        for text in (data, data.replace(b"\0", b"")) if _is_wide(data) else (data,):
            for kind, form in FORMS.items():
                if any(word in text for word in form.words) and form.pattern.search(text):
                    return kind
        kept = data[-OVERLAP:]
    return None


def _is_wide(data: bytes) -> bool:
    """Whether this may be text of two bytes a letter, as some editors save it."""
    begin = data[:400]
    return begin.count(0) > len(begin) // 3
