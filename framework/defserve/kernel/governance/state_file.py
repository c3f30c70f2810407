"""What a kernel remembers beside its file: the digests of tools, who was granted what, what operators decided.

It is one file, made when there is something to remember. Several kernels may serve one mgp.toml, so each change is made
to what the file says at that moment, under a lock, and the file is replaced whole. `refresh` reads what others did.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from defserve.errors import UsageError
from defserve.stores.files import locked, replace
from defserve.wire.jsonvalue import is_array, is_object

VERSION: Final = 1
SUFFIX: Final = ".state.json"
LOCK: Final = ".lock"
LARGEST: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class KernelState:
    """`pins` are digests by server and tool, `definitions` what they are digests of. `access` are entries by server,
    `permissions` the decisions of operators by server and permission."""

    pins: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    access: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    definitions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])
    permissions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])


class StateFile:
    """`known` is what the file said last. Nobody else changes it: give `update` what to change. Raises UsageError for
    a file that cannot be read."""

    def __init__(self, config: Path) -> None:
        self.path = config.with_suffix(SUFFIX)
        self._lock = Lock()
        self._stamp = self._stamped()
        self.known = self._read()

    def update(self, change: Callable[[KernelState], None]) -> None:
        """Make a change to what is kept now. When it returns, the change is safe. Raises OSError if it cannot be."""
        with self._lock, locked(self.path.with_name(self.path.name + LOCK)):
            try:
                state = self._read()
            except UsageError as error:
                raise OSError(error.problem) from None
            change(state)
            kept = {"version": VERSION, **asdict(state)}
            replace(self.path, json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n")
            self.known = state

    def refresh(self) -> bool:
        """Read what others have written meanwhile. Returns whether the file has changed. Raises UsageError."""
        with self._lock:
            if (stamp := self._stamped()) == self._stamp:
                return False
            self.known, self._stamp = self._read(), stamp
            return True

    def _stamped(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> KernelState:
        try:
            if self.path.stat().st_size > LARGEST:
                raise ValueError
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return KernelState()
        except (OSError, ValueError, RecursionError):
            found = None
        if is_object(found) and found.pop("version", None) == VERSION and _is_sound(found):
            return KernelState(**{name: found[name] for name in KernelState.__slots__ if name in found})
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
        and all(_is_table(found.get(name, {})) for name in ("definitions", "permissions"))
    )


def _is_table(found: Any) -> bool:
    """Objects by server and name."""
    return is_object(found) and all(is_object(each) and all(map(is_object, each.values())) for each in found.values())
