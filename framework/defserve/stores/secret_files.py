"""Secrets in files of their own: private (0600), made once, and never half written."""

from __future__ import annotations

import os
from pathlib import Path

from defserve.errors import UsageError


def config_file(name: str) -> Path:
    """A file of the user's own defserve folder, which need not exist."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config, "defserve", name)


def read_secret(path: Path, name: str) -> bytes:
    """What the file holds. Raises UsageError, with the secret called `name`, if it is empty or others can read it."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if os.name == "posix" and mode & 0o077:
            raise UsageError(f"{name} {path} can be read by others", fix=f"chmod 600 {path}")
        secret = file.read(4096).strip()
    if not secret:
        raise UsageError(f"{name} {path} is empty", fix="remove it, and a new one is made")
    return secret


def make_secret(path: Path, name: str) -> bytes:
    """A new secret of 256 bits, kept in the file; or what is there already. Raises OSError."""
    import secrets

    secret = secrets.token_urlsafe(32).encode()
    # Linked into place when it is whole: of two processes that make one at once, both must use the same.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secret + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        return read_secret(path, name)
    return secret
