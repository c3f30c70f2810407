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

VARIABLE: Final = "DEFSERVE_AUDIT_KEY"


def default_key_file() -> Path:
    """The user's own key file, which need not exist."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config, "defserve", "audit.key")


def audit_key(key_file: str | os.PathLike[str] | None = None, *, make: bool = False) -> bytes:
    """The key. With `make`, a key file that is not there yet is made, as a server does on its first use.

    Raises UsageError if there is no key, or if others can read its file.
    """
    if key_file is None and (text := os.environ.get(VARIABLE)):
        return text.strip().encode()
    path = Path(key_file) if key_file is not None else default_key_file()
    try:
        return _read(path)
    except FileNotFoundError:
        if not make:
            raise UsageError(
                f"there is no audit key: {path} does not exist",
                fix=f"name the file the log was written with (--key-file), or set {VARIABLE}",
            ) from None
        return _make(path)
    except OSError as error:
        raise UsageError(f"the audit key {path} cannot be read: {error.strerror}") from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if os.name == "posix" and mode & 0o077:
            raise UsageError(f"the audit key {path} can be read by others", fix=f"chmod 600 {path}")
        key = file.read(4096).strip()
    if not key:
        raise UsageError(f"the audit key {path} is empty", fix="remove it, and a new one is made")
    return key


def _make(path: Path) -> bytes:
    import secrets

    key = secrets.token_urlsafe(32).encode()
    # Linked into place when it is whole: of two processes that make one at once, both must use the same.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(key + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise UsageError(
            f"the audit key {path} cannot be made: {error.strerror}", fix=f"set {VARIABLE}, or name a key file"
        ) from None
    return key
