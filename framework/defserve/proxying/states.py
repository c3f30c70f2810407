"""The states of a server behind this one (MGP §11.2)."""

from __future__ import annotations

from typing import Literal, TypeAlias

State: TypeAlias = Literal["registered", "connecting", "connected", "draining", "disconnected", "restarting", "error"]
