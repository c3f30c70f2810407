"""What a kernel remembers beside its file: the digests of tools, and who was granted what. One file, replaced whole.

It is made when there is something to remember. Two kernels on one file overwrite each other's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.stores.files import replace
from defserve.wire.jsonvalue import is_array, is_object

VERSION: Final = 1
SUFFIX: Final = ".state.json"
LARGEST: Final = 64 * 1024 * 1024


class StateFile:
    """`pins` are digests by server and tool, `access` are entries by server."""

    def __init__(self, config: Path) -> None:
        self.path = config.with_suffix(SUFFIX)
        found = self._read()
        self.pins: dict[str, dict[str, str]] = found.get("pins", {})
        self.access: dict[str, list[dict[str, Any]]] = found.get("access", {})

    def write(self) -> None:
        """Raises OSError if it cannot be kept."""
        kept = {"version": VERSION, "pins": self.pins, "access": self.access}
        replace(self.path, json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n")

    def _read(self) -> dict[str, Any]:
        try:
            if self.path.stat().st_size > LARGEST:
                raise ValueError
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            found = None
        if is_object(found) and found.get("version") == VERSION and _is_sound(found):
            return found
        raise UsageError(
            f"{self.path} cannot be read, or is not what a kernel of this version writes",
            fix="restore it; or remove it, and approve tools and grant access anew",
        )


def _is_sound(found: dict[str, Any]) -> bool:
    pins, access = found.get("pins"), found.get("access")
    return (
        is_object(pins)
        and all(is_object(each) and all(isinstance(text, str) for text in each.values()) for each in pins.values())
        and is_object(access)
        and all(is_array(each) and all(map(is_object, each)) for each in access.values())
    )
