"""MGP §3.2, §4: the standard words of a declaration: permissions, risks, side effects, validators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from defserve.errors import UsageError, did_you_mean

Risk = Literal["safe", "moderate", "dangerous"]

# §3.2: the standard permissions and their risk.
PERMISSIONS: Mapping[str, Risk] = {
    "filesystem.read": "moderate",
    "filesystem.write": "dangerous",
    "network.outbound": "moderate",
    "network.listen": "dangerous",
    "shell.execute": "dangerous",
    "code_execution": "dangerous",
    "memory.read": "safe",
    "memory.write": "moderate",
    "system.info": "safe",
    "camera": "dangerous",
    "notification": "safe",
}
READING = frozenset({"filesystem.read", "network.outbound", "memory.read", "system.info"})

# §2.3 shows bare family names, §3.2 has none: a peer that sends one means the whole family.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    family: tuple(name for name in PERMISSIONS if name.startswith(family + "."))
    for family in dict.fromkeys(name.partition(".")[0] for name in PERMISSIONS if "." in name)
}
EFFECTS = ("filesystem", "network", "process", "database", "notification")
VALIDATORS = ("sandbox", "readonly", "network_restricted", "code_safety", "none")
CUSTOM = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*){2,}")
"""A name of the author's own, in reverse-domain notation."""


def is_permission(name: str) -> bool:
    """Whether it is a standard permission, or one in reverse-domain notation."""
    return name in PERMISSIONS or CUSTOM.fullmatch(name) is not None


def checked_permission(name: object, place: str = "") -> str:
    """The name, if it is a permission. Raises UsageError for anything else."""
    if isinstance(name, str) and is_permission(name):
        return name
    others = f"use one of {', '.join(PERMISSIONS)}, or your own in reverse-domain notation: com.example.billing"
    raise UsageError(
        f"{name!r} is not a permission",
        where=place,
        fix=did_you_mean(str(name), PERMISSIONS, others),
    )
