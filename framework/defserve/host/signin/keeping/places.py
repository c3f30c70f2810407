"""Where the sign-in to a server is kept. It imports little, because every command with an address looks there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from defserve.auth.urls import http_address
from defserve.stores.files import config_file

FOLDER: Final = "sign-ins"
_PORTS: Final = {"http": 80, "https": 443}


def canonical(url: str) -> str:
    """The one way in which the address of a server is written: as a key, not to connect to."""
    try:
        parts = urlsplit(http_address(url.strip()))
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return url
    named = f"[{host}]" if ":" in host else host
    place = named if port in (None, _PORTS.get(parts.scheme)) else f"{named}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}{f'?{parts.query}' if parts.query else ''}"


def file_of(url: str, folder: Path | None = None) -> Path:
    """The file of the sign-in to a server."""
    name = hashlib.sha256(canonical(url).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return (folder or config_file(FOLDER)) / f"{name}.json"


def is_kept(url: str) -> bool:
    """Whether this user has signed in to a server."""
    return os.path.isfile(file_of(url))
