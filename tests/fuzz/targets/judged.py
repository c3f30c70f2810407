"""Judges and checkpoints: they never raise, and what they allow is what it seems to be."""

from __future__ import annotations

import json
import posixpath
import socket
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic_core import to_json

from defserve.errors import LimitExceeded
from defserve.guard import code as python
from defserve.guard import network, paths
from defserve.guard.shell import judgement as shell
from defserve.guard.verdict import Verdict
from defserve.stores.checkpoints.checkpoint_tree import (
    CheckpointContent,
    ContentTooDeep,
    encode_canonical,
    make_checkpoint_draft,
)
from defserve.stores.checkpoints.json_patches import BadPatch, apply_patch_to_text, diff_json_values

ROOT = "/srv/files"


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _explained(verdict: Verdict) -> None:
    assert verdict.allowed or all(violation.message for violation in verdict.violations)


def commands(data: bytes) -> None:
    """A command is refused with a reason, or has an argv whose words are all in it."""
    text = _text(data)
    for mode in ("sandbox", "readonly"):
        verdict = shell.judge(text, mode=mode, root=ROOT)  # type: ignore[arg-type]
        _explained(verdict)
        if verdict.allowed:
            assert not set("\n\r\0`") & set(text) or "'" in text or '"' in text, text


def files(data: bytes) -> None:
    """A path that is allowed stays below its root."""
    text = _text(data)
    verdict = paths.judge(text, ROOT)
    _explained(verdict)
    if verdict.allowed:
        inside = posixpath.normpath(posixpath.join(ROOT, text))
        assert inside == ROOT or inside.startswith(ROOT + "/"), text
        assert "\\" not in text and "\0" not in text


def addresses(data: bytes) -> None:
    """A URL that is allowed leads, for other readers too, where it seems to."""
    text = _text(data)
    verdict = network.judge(text)
    _explained(verdict)
    if verdict.allowed:
        assert verdict.url is not None
        again = network.judge(verdict.url)
        assert again.allowed and again.url == verdict.url, (verdict.url, again)
        host = urlsplit(verdict.url).hostname or ""
        assert host and host != "localhost" and not host.endswith(".localhost"), verdict.url
        # As C libraries read it: 127.1 and 0x7f.0.0.1 are addresses, too.
        with suppress(OSError):
            assert ip_address(socket.inet_aton(host)).is_global, verdict.url
        with suppress(ValueError):
            assert ip_address(host).is_global, verdict.url


def code(data: bytes) -> None:
    """Code is refused with a reason, or allowed. Whatever it is, judging ends."""
    _explained(python.judge(data))


def checkpoints(data: bytes) -> None:
    """Two JSON values: the difference, applied to the first, gives the second, to the byte."""
    try:
        before, after = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return
    try:
        first = CheckpointContent.from_value(before)
        second = make_checkpoint_draft(after, first, 64)
    except (ContentTooDeep, ValueError):
        return
    assert second.content.encoded == encode_canonical(after)
    if second.ops is not None:
        try:
            patched = apply_patch_to_text(to_json(first.copy()), second.ops, max_ops=100_000)
        except LimitExceeded:
            return
        assert encode_canonical(patched) == second.content.encoded, second.ops
    assert encode_canonical(json.loads(second.content.encoded)) == second.content.encoded


def patches(data: bytes) -> None:
    """An untrusted patch is applied or refused, within its bounds, and leaves the value as it was."""
    try:
        value, ops = json.loads(data)
        before, held = json.dumps(value), to_json(value)
    except (ValueError, TypeError, RecursionError):
        return
    try:
        after = apply_patch_to_text(held, ops, max_ops=50, max_bytes=20_000)
    except (BadPatch, LimitExceeded) as error:
        assert str(error)
    else:
        assert len(encode_canonical(after)) <= 21_000
        assert isinstance(diff_json_values(value, after), list)
    assert json.dumps(value) == before
