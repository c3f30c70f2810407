"""Who may come in: the list, or the function, of `OAuthProxy(allow=…)`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

from defserve.auth.proxy.vendors.table import Vendor
from defserve.errors import UsageError

log = logging.getLogger("defserve.auth")

Allows = Callable[[Mapping[str, Any]], bool]
"""Whether a user with these claims may come in. `sub` is the id that never changes for a user of this vendor."""

EVERYBODY: Final = "*"
# Claims that hold an address, if the vendor's `names` have them.
_ADDRESSES: Final = ("email", "preferred_username")
# Numbers and UUIDs are ids. A login may look like one: GitHub lets users choose digits alone.
_ID: Final = re.compile(r"[0-9]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


# Only these: beyond ASCII, `str.lower` turns a letter into another one. The sign for kelvin becomes the k of an address.
_SMALL: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


def allows_of(allow: str | Sequence[str] | Allows, vendor: Vendor) -> Allows:
    """What `allow` means for the users of a vendor. Raises UsageError if it lets nobody in, or is async."""
    if callable(allow):
        return _careful(allow)
    given = [allow] if isinstance(allow, str) else list(allow)
    if not given or not all(given):
        raise UsageError("OAuthProxy(allow=…) lets nobody in", fix='name people, or give "*" for everybody')
    if EVERYBODY in given:
        return lambda claims: True
    logins = tuple(name for name in vendor.names if name not in (vendor.subject, "email"))
    # Each kind of name is compared with its own claims only: whoever may choose one kind must not get in as another.
    addresses = {text.translate(_SMALL) for text in given if "@" in text}
    plain = [text for text in given if "@" not in text]
    ids = {text for text in plain if not logins or _ID.fullmatch(text)}
    called = {text.translate(_SMALL) for text in plain if text not in ids}

    def allows(claims: Mapping[str, Any]) -> bool:
        return (
            (vendor.subject in vendor.names and str(claims.get("sub", "")) in ids)
            or not called.isdisjoint(str(claims.get(name) or "").translate(_SMALL) for name in logins)
            or not addresses.isdisjoint(_addresses(claims, vendor))
        )

    return allows


def _careful(allow: Allows) -> Allows:
    """An author's function. Nobody is let in if it fails, or if its answer would have to be awaited."""
    if iscoroutinefunction(allow):
        raise UsageError("OAuthProxy(allow=…) is an async function", fix="write def: it decides by the claims alone")

    def allows(claims: Mapping[str, Any]) -> bool:
        try:
            said: object = allow(claims)
        except Exception:
            log.exception("OAuthProxy(allow=…) failed for %s, who is not let in", claims.get("sub"))
            return False
        if isawaitable(said):
            log.error("OAuthProxy(allow=…) gave something to await, so nobody is let in: give True or False")
            return False
        return bool(said)

    return allows


def _addresses(claims: Mapping[str, Any], vendor: Vendor) -> Iterator[str]:
    """A user's addresses and their domains. An e-mail address counts only if the vendor has verified it."""
    for name in _ADDRESSES:
        value = str(claims.get(name) or "").translate(_SMALL)
        is_sure = name in vendor.names and (name != "email" or claims.get("email_verified") is True)
        if is_sure and "@" in value:
            yield from (value, f"@{value.rpartition('@')[2]}")
