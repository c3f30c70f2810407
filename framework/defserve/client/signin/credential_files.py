"""Sign-ins in private files, their secrets in the system's keyring where there is one.

A credential that was kept is there for the next process. Who renews one holds its lock, so that a refresh token that
may be used once is used once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from defserve.client.link import SIGN_IN_FOLDER, canonicalize_url, get_sign_in_path
from defserve.client.replies import Json, object_or_empty, string_or_none
from defserve.client.signin.credentials import (
    LOCK_SECONDS,
    Credential,
    dump_public_fields,
    dump_secret_fields,
    parse_credential,
)
from defserve.errors import UsageError
from defserve.stores.files import (
    get_config_path,
    hold_file_lock,
    is_private_folder,
    make_newer_format_message,
    read_private_file,
    replace_file,
)

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 512 * 1024
NAME: Final = "the sign-in"

log = logging.getLogger("defserve.client")


class FileCredentialStore:
    """A `CredentialStore` of one file for each server, which only its owner can read.

    With a `keyring` the secrets are there, and the files say for which servers. What it refuses is in the file.
    """

    def __init__(self, folder: Path, keyring: Keyring | None) -> None:
        self._folder, self._keyring = folder, keyring

    def load_credential(self, server: str) -> Credential | None:
        """See `CredentialStore`. Raises UsageError if others could have read or changed it."""
        found = self._read_file(get_sign_in_path(server, self._folder))
        # A token is for one server. A file that was copied or renamed does not make it one for another.
        return found if found is not None and canonicalize_url(found.server) == canonicalize_url(server) else None

    def store_credential(self, credential: Credential) -> None:
        path = get_sign_in_path(credential.server, self._folder)
        public, secret = dump_public_fields(credential), dump_secret_fields(credential)
        document: Json = {"format": FORMAT, **public}
        if self._keyring is not None and self._keyring.store_secret(self._entry(credential.server), json.dumps(secret)):
            document["keyring"] = True
        else:
            document["secrets"] = secret
        try:
            self._make_folder()
            replace_file(path, json.dumps(document).encode())
        except OSError as error:
            raise UsageError(f"{NAME} {path} cannot be kept: {error.strerror}", fix="check that folder") from None

    def delete_credential(self, server: str) -> bool:
        path = get_sign_in_path(server, self._folder)
        if self._keyring is not None:
            self._keyring.delete_secret(self._entry(server))
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(f"{NAME} {path} cannot be removed: {error.strerror}", fix="remove that file") from None
        return True

    def servers(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("*.json")):
            if server := string_or_none(self._document(path).get("server")):
                yield server

    def get_credential_path(self, server: str) -> str:
        """Where the secrets for a server are, for a person."""
        path = get_sign_in_path(server, self._folder)
        return "the system's keyring" if self._document(path).get("keyring") else str(path)

    @contextmanager
    def hold_credential_lock(self, server: str) -> Generator[None]:
        self._make_folder()
        with hold_file_lock(get_sign_in_path(server, self._folder).with_suffix(".lock"), LOCK_SECONDS):
            yield

    def _entry(self, server: str) -> str:
        """The key in the keyring. With the folder: who has two has a sign-in in each, and only one keyring."""
        return f"{canonicalize_url(server)} ({self._folder})"

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and not is_private_folder(self._folder):
            raise UsageError(f"others can use {self._folder}", fix=f"chmod 700 {self._folder}")

    def _read_file(self, path: Path) -> Credential | None:
        document = self._document(path)
        if not document:
            return None
        if not document.get("keyring"):
            return parse_credential(document, object_or_empty(document.get("secrets")))
        if self._keyring is None:
            raise UsageError(
                f"the secrets of {NAME} {path} are in the system's keyring, which cannot be used here",
                fix='pip install "defserve[client]", or sign in again: defserve login URL',
            )
        kept = self._keyring.load_secret(self._entry(string_or_none(document.get("server")) or ""))
        return parse_credential(document, object_or_empty(json.loads(kept))) if kept else None

    def _document(self, path: Path) -> Json:
        if not os.path.lexists(path):
            return {}
        if os.name == "posix" and not is_private_folder(path.parent):
            raise UsageError(f"others can use {path.parent}", fix=f"chmod 700 {path.parent}")
        try:
            document = object_or_empty(json.loads(read_private_file(path, NAME, MAX_FILE_BYTES)))
        except (OSError, ValueError) as error:
            said = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is damaged"
            log.warning("%s %s cannot be read: %s", NAME, path, said)
            return {}
        found = document.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise UsageError(
                make_newer_format_message(f"{NAME} {path}", found, FORMAT),
                fix="use the defserve that made it, or remove the file and sign in again",
            )
        return document


def get_user_credential_store() -> FileCredentialStore:
    """Where `defserve login` keeps what it gets."""
    return FileCredentialStore(get_config_path(SIGN_IN_FOLDER), Keyring.of_system())


# -- The system's keyring, by the library `keyring` (extra `keyring`).


KEYRING_SERVICE: Final = "defserve"


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

    def load_secret(self, key: str) -> str | None:
        """Raises UsageError if the keyring does not answer, since somebody may have to unlock it."""
        try:
            return self._backend.get_password(KEYRING_SERVICE, key)
        except Exception as error:
            raise UsageError(
                f"the system's keyring does not answer ({type(error).__name__})", fix="unlock it, and try again"
            ) from None

    def store_secret(self, key: str, secret: str) -> bool:
        """Whether it was kept."""
        try:
            self._backend.set_password(KEYRING_SERVICE, key, secret)
        except Exception as error:
            log.warning("the system's keyring takes no secret (%s): it is kept in a file", type(error).__name__)
            return False
        return True

    def delete_secret(self, key: str) -> None:
        """Forget a secret, if it is there."""
        try:
            self._backend.delete_password(KEYRING_SERVICE, key)
        except Exception as error:
            log.debug("nothing to remove from the keyring: %s", type(error).__name__)
