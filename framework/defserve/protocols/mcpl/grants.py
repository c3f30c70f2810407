"""MCPL 0.5 §6: the capability paths that a policy grants.

A pattern has as many segments as the path it covers; `*` stands for exactly one. So `channels.*` covers
`channels.publish`, and the name of a parent covers nothing below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from defserve.errors import InvalidParams
from defserve.protocols.mcpl.vocabulary import PATHS
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

MOST_NAMES: Final = 1_000
LONGEST_PATTERN: Final = 1_024


def covers(pattern: str, path: str) -> bool:
    """Whether a pattern covers a capability path or the name of a set."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(one in ("*", other) for one, other in zip(wanted, given, strict=True))


def covered(patterns: Iterable[str], paths: Iterable[str] = PATHS) -> frozenset[str]:
    """The paths that some of the patterns cover."""
    given = frozenset(patterns)
    wild = [pattern for pattern in given if "*" in pattern]
    return frozenset(path for path in paths if path in given or any(covers(pattern, path) for pattern in wild))


def granted_paths(params: Params) -> frozenset[str]:
    """The paths that the params of a request-form `featureSets/update` grant; unknown ones are left out.

    Raises InvalidParams if a list is broken, or if a path is both granted and denied.
    """
    granted = covered(few_names_in(params, "effectiveCapabilities"))
    if both := granted & covered(few_names_in(params, "deniedCapabilities")):
        raise InvalidParams(f"Invalid params: {min(both)} is in effectiveCapabilities and in deniedCapabilities")
    return granted


def names_in(params: Params, member: str) -> list[str]:
    """A member that must be a list of texts, and may be missing. Raises InvalidParams."""
    found = params.get(member)
    if found is not None and not (is_array(found) and all(isinstance(name, str) for name in found)):
        raise InvalidParams(f"Invalid params: {member} must be a list of texts")
    return list(found or ())


def few_names_in(params: Params, member: str) -> list[str]:
    """The same, for a list that is kept: it must have few names, and short ones."""
    names = names_in(params, member)
    if len(names) > MOST_NAMES or any(len(name) > LONGEST_PATTERN for name in names):
        raise InvalidParams(f"Invalid params: {member} has too many names, or too long ones")
    return names
