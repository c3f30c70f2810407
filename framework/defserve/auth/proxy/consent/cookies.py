"""Cookies of the sign-in: only this server reads them, and only over https, except on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

LONGEST: Final = 3900
_PAIR: Final = re.compile(r"([A-Za-z0-9_-]+)=([A-Za-z0-9_-]*)")


class ConsentCookies:
    """Writes and reads cookies for an issuer with this URL."""

    def __init__(self, issuer: str) -> None:
        self._is_https = issuer.startswith("https:")
        # Browsers accept this prefix only from the host itself, over https, for every path.
        self._prefix = "__Host-defserve-" if self._is_https else "defserve-"

    def kept(self, name: str, value: str, seconds: float, same_site: Literal["Strict", "Lax"]) -> tuple[str, str]:
        """The header that keeps a value in the browser."""
        secure = "; Secure" if self._is_https else ""
        text = f"{self._prefix}{name}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite={same_site}{secure}"
        return "set-cookie", text

    def dropped(self, name: str) -> tuple[str, str]:
        return self.kept(name, "", 0, "Lax")

    def read(self, headers: Mapping[str, str], name: str) -> str:
        """The value that the browser shows; empty if there is none, or more than one."""
        pairs = (_PAIR.fullmatch(part.strip()) for part in headers.get("cookie", "").split(";"))
        found = [pair[2] for pair in pairs if pair is not None and pair[1] == self._prefix + name]
        return found[0] if len(found) == 1 else ""
