"""Where the key of an audit log comes from: never from the log's own folder, and never into the log.

In this order: a key file that was named, the variable DEFSERVE_AUDIT_KEY, the user's own `defserve/audit.key` below
`$XDG_CONFIG_HOME` (or `~/.config`). A key file is private (0600) and holds the key as text; whoever can read it can
rewrite the log, so keep it where the log's readers and shippers do not reach.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from defserve.errors import UsageError
from defserve.stores.files import config_file, make_secret, read_secret

VARIABLE: Final = "DEFSERVE_AUDIT_KEY"
NAME: Final = "the audit key"


def default_key_file() -> Path:
    """The user's own key file, which need not exist."""
    return config_file("audit.key")


def audit_key(key_file: str | os.PathLike[str] | None = None, *, make: bool = False) -> bytes:
    """The key. With `make`, a key file that is not there yet is made, as a server does on its first use.

    Raises UsageError if there is no key, or if others can read its file.
    """
    if key_file is None and (text := os.environ.get(VARIABLE)):
        return text.strip().encode()
    path = Path(key_file) if key_file is not None else default_key_file()
    try:
        return read_secret(path, NAME)
    except FileNotFoundError:
        if not make:
            raise UsageError(
                f"there is no audit key: {path} does not exist",
                fix=f"name the file the log was written with (--key-file), or set {VARIABLE}",
            ) from None
    except OSError as error:
        raise UsageError(f"the audit key {path} cannot be read: {error.strerror}") from None
    try:
        return make_secret(path, NAME)
    except OSError as error:
        raise UsageError(
            f"the audit key {path} cannot be made: {error.strerror}", fix=f"set {VARIABLE}, or name a key file"
        ) from None
