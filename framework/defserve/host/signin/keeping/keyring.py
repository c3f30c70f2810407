"""The system's keyring, by the library `keyring` (extra `keyring`)."""

from __future__ import annotations

import logging
from typing import Any, Final

from defserve.errors import UsageError

SERVICE: Final = "defserve"

log = logging.getLogger("defserve.host")


class Keyring:
    """One secret text for each key. What the system's keyring refuses is not kept there."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @classmethod
    def of_system(cls) -> Keyring | None:
        """The keyring of this system; None if there is none, or the library is not installed."""
        try:
            import keyring

            backend: Any = keyring.get_keyring()
            # Backends that keep nothing, or refuse to, say so by a low priority.
            return cls(backend) if float(backend.priority) >= 1 else None
        except Exception as error:
            log.debug("no keyring: %s", type(error).__name__)
            return None

    def read(self, key: str) -> str | None:
        """Raises UsageError if the keyring does not answer, since somebody may have to unlock it."""
        try:
            return self._backend.get_password(SERVICE, key)
        except Exception as error:
            raise UsageError(
                f"the system's keyring does not answer ({type(error).__name__})", fix="unlock it, and try again"
            ) from None

    def write(self, key: str, secret: str) -> bool:
        """Whether it was kept."""
        try:
            self._backend.set_password(SERVICE, key, secret)
        except Exception as error:
            log.warning("the system's keyring takes no secret (%s): it is kept in a file", type(error).__name__)
            return False
        return True

    def forget(self, key: str) -> None:
        """Forget a secret, if it is there."""
        try:
            self._backend.delete_password(SERVICE, key)
        except Exception as error:
            log.debug("nothing to remove from the keyring: %s", type(error).__name__)
