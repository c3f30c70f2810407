"""Where the key of an audit log comes from. It is never in the folder of the log, and never in the log.

In this order: a key file that was named, the variable DEFSERVE_AUDIT_KEY, the user's own `defserve/audit.key` below
`$XDG_CONFIG_HOME` (or `~/.config`). A key file is private (0600) and holds the key as text. Everyone who can read it
can rewrite the log. So people and programs that read or copy the log must not have access to it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from defserve.stores.files import config_file, stored_secret

VARIABLE: Final = "DEFSERVE_AUDIT_KEY"


def audit_key(key_file: str | os.PathLike[str] | None = None, *, make: bool = False) -> bytes:
    """The key. With `make`, a missing key file is created, as a server does on its first use.

    Raises UsageError if there is no key, or if others can read its file.
    """
    if key_file is None and (text := os.environ.get(VARIABLE)):
        return text.strip().encode()
    path = Path(key_file) if key_file is not None else config_file("audit.key")
    fix = f"name the file the log was written with (--key-file), or set {VARIABLE}"
    return stored_secret(path, "the audit key", make=make, fix=fix)
