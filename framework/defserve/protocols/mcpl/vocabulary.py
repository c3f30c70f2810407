"""What a host's version of MCPL means: how it names what feature sets do, and which rules hold with it.

Two vocabularies exist, 0.4 and 0.5. Nothing else in this protocol compares versions: sections ask the vocabulary of
their host. Version 0.5 means the draft with grants and receipts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

BEFORE: Final = "contextHooks.beforeInference"
AFTER: Final = "contextHooks.afterInference"
OBSERVE: Final = f"{BEFORE}.observe"
# The position of an injection, as the wire has it → the path that permits it.
INJECT: Final[Mapping[str, str]] = {name: f"{BEFORE}.inject.{name}" for name in ("system", "beforeUser", "afterUser")}

# What hosts of 0.5 grant a server only if their user says so. A set that uses it is off at all other hosts.
DENIED_BY_DEFAULT: Final = frozenset({INJECT["system"]})

# What a feature set does → how 0.4 names it, and how 0.5 does. A set declares what it does in these words.
USES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "pushEvents": (("pushEvents",), ("pushEvents",)),
    BEFORE: ((BEFORE,), (OBSERVE, *INJECT.values())),
    OBSERVE: ((BEFORE,), (OBSERVE,)),
    **{path: ((BEFORE,), (path,)) for path in INJECT.values()},
    AFTER: ((AFTER,), ()),
    "inferenceLifecycle": ((AFTER,), ("inferenceLifecycle",)),
    "inferenceRequest": (("inferenceRequest",), ("inferenceRequest",)),
    "inferenceRequest.streaming": (("inferenceRequest",), ("inferenceRequest", "inferenceRequest.streaming")),
    "modelInfo": ((), ("modelInfo",)),
    "tools": (("tools",), ("tools",)),
    "channels.register": ((), ("channels.register",)),
    "channels.lifecycle": ((), ("channels.lifecycle",)),
    "channels.publish": (("channels.publish",), ("channels.publish",)),
    "channels.observe": (("channels.observe",), ("channels.register", "channels.incoming")),
    "channels.incoming": (("channels.observe",), ("channels.incoming",)),
    "channels.streaming": (("channels.observe",), ("channels.streaming",)),
    "channels.acknowledge": ((), ("channels.acknowledge",)),
    "channels.typing": ((), ("channels.typing",)),
}

# The paths of 0.5, in the order in which they are listed. Grants know no others.
PATHS: Final = tuple(dict.fromkeys(path for _, paths in USES.values() for path in paths))


@dataclass(frozen=True, slots=True, repr=False)
class Vocabulary:
    """The words and rules of one version.

    version    what a host of this version is told
    names      what a set does → the names that say so in `uses`
    lost       what a set may do that no host of this version lets happen
    gates      method of the host → the paths of which one must be granted; a method without a gate is always served
    removed    methods that this version does not have
    fields     the members of a set's declaration, besides its description and uses
    by_grant   nothing is permitted before a policy that grants it; else everything is, until a policy forbids it
    scopes     sets have scopes, and `scope/elevate` exists
    tags       events and messages carry tags
    verdicts   channels are judged one by one: `channels/changed` is a request, and no verdict is no acceptance
    manifest   changes are told by `mcpl/manifestChanged`; else by `featureSets/changed`
    can_enable refusals say `canEnable`
    """

    version: str
    names: Mapping[str, tuple[str, ...]]
    lost: tuple[str, ...]
    gates: Mapping[str, tuple[str, ...]]
    removed: frozenset[str]
    fields: tuple[str, ...]
    by_grant: bool
    scopes: bool
    tags: bool
    verdicts: bool
    manifest: bool
    can_enable: bool

    def __repr__(self) -> str:
        return f"<MCPL {self.version}>"

    def spelled(self, uses: Iterable[str]) -> list[str]:
        """The `uses` of a set as a host of this version reads them."""
        named = {name for use in uses for name in self.names[use]}
        return [name for name in dict.fromkeys(chain.from_iterable(self.names.values())) if name in named]

    def closed_gate(self, method: str, grants: Callable[[str], bool]) -> str | None:
        """The capability that a method of the host needs, if it is not granted; None if the method may be served."""
        paths = self.gates.get(method)
        return None if paths is None or any(map(grants, paths)) else paths[0]


V04: Final = Vocabulary(
    version="0.4",
    names={use: old for use, (old, _) in USES.items()},
    lost=(),
    gates={},
    removed=frozenset({"mcpl/manifest"}),
    fields=("scoped", "rollback", "hostState"),
    by_grant=False,
    scopes=True,
    tags=False,
    verdicts=False,
    manifest=False,
    can_enable=True,
)

V05: Final = Vocabulary(
    version="0.5",
    names={use: new for use, (_, new) in USES.items()},
    lost=(AFTER,),
    gates={
        "context/beforeInference": (OBSERVE, *INJECT.values()),
        "inference/lifecycle": ("inferenceLifecycle",),
        "inference/chunk": ("inferenceRequest.streaming",),
        "channels/list": ("channels.register",),
        "channels/open": ("channels.lifecycle",),
        "channels/close": ("channels.lifecycle",),
        "channels/publish": ("channels.publish",),
        "channels/acknowledge": ("channels.acknowledge",),
        "channels/typing": ("channels.typing",),
        "notifications/typing": ("channels.typing",),
        "channels/outgoing/chunk": ("channels.streaming",),
        "channels/outgoing/complete": ("channels.streaming",),
    },
    removed=frozenset({"context/afterInference"}),
    fields=("rollback", "tagOntology"),
    by_grant=True,
    scopes=False,
    tags=True,
    verdicts=True,
    manifest=True,
    can_enable=False,
)


def find_denied(uses: Iterable[str]) -> list[str]:
    """What a set with these `uses` lacks at a host of 0.5 with its default settings. Then the host switches it off."""
    found = [*uses]
    return [path for path in V05.spelled(found) if path in DENIED_BY_DEFAULT] + [
        use for use in found if use in V05.lost
    ]


_VERSION: Final = re.compile(r"0\.(\d+)")
_DIGITS: Final = 9


def vocabulary_of(version: Any) -> Vocabulary | None:
    """The vocabulary for a peer that says this version; None for a version that we do not speak.

    A peer that leaves its version out speaks 0.4.
    """
    if version is None:
        return V04
    minor = _VERSION.match(version) if isinstance(version, str) else None
    if minor is None:
        return None
    return V05 if int(minor[1][:_DIGITS]) >= 5 else V04
