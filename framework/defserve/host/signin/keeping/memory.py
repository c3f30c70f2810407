"""Where sign-ins are kept, and the simplest such place: this process."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from defserve.host.signin.credential import Credential

LOCK_SECONDS: Final = 60.0
"""Longer than a renewal may take."""


class CredentialStore(Protocol):
    """Keeps one credential for each server. Its methods may block, so they are called in a thread."""

    def read(self, server: str) -> Credential | None:
        """The credential for a server."""
        ...

    def write(self, credential: Credential) -> None:
        """Keep a credential instead of the one before. Raises UsageError if it cannot be kept."""
        ...

    def forget(self, server: str) -> bool:
        """Forget a credential. Whether there was one."""
        ...

    def servers(self) -> Iterator[str]:
        """The servers that there are credentials for."""
        ...

    def locked(self, server: str) -> AbstractContextManager[None]:
        """Whoever else wants to renew the credential of this server waits. Entering it raises OSError or UsageError.

        It is entered in one thread and left in another.
        """
        ...


class MemoryCredentialStore:
    """A `CredentialStore` that ends with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, Credential] = {}
        self._locks: dict[str, threading.Lock] = {}

    def read(self, server: str) -> Credential | None:
        return self._kept.get(server)

    def write(self, credential: Credential) -> None:
        self._kept[credential.server] = credential

    def forget(self, server: str) -> bool:
        return self._kept.pop(server, None) is not None

    def servers(self) -> Iterator[str]:
        return iter(tuple(self._kept))

    @contextmanager
    def locked(self, server: str) -> Generator[None]:
        lock = self._locks.setdefault(server, threading.Lock())
        if not lock.acquire(timeout=LOCK_SECONDS):
            raise TimeoutError(f"another renewal takes more than {LOCK_SECONDS:g} s")
        try:
            yield
        finally:
            lock.release()
