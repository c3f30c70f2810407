"""What a client offers of MGP, and what a server says of itself when it is opened (§2.2, §2.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.host.fields import Json, object_of, text_of, texts_of
from defserve.protocols.mgp.agreed import EXTENSION_ID, SECTIONS, VERSION

if TYPE_CHECKING:
    from defserve.host.eras import SessionTerms

MOST_PERMISSIONS: Final = 256
LONGEST_NAME: Final = 256


class SaidMgp(NamedTuple):
    """A server's words. `version` None: it speaks no MGP, or another one. `extensions` are those agreed on."""

    version: str | None = None
    extensions: tuple[str, ...] = ()
    sections: frozenset[str] = frozenset()
    permissions: tuple[str, ...] = ()
    server_id: str | None = None
    trust_level: str | None = None


def mgp_offer(extensions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Era → the client capabilities that offer MGP."""
    block = {"version": VERSION, "extensions": list(extensions)}
    return {
        "handshake": {"mgp": block, "experimental": {"mgp": block}},
        "stateless": {"extensions": {EXTENSION_ID: block}},
    }


def said_mgp(terms: SessionTerms, offered: Collection[str]) -> SaidMgp:
    """What the server answered to an offer of these extensions."""
    block = _block(terms)
    version, id = text_of(block.get("version")), text_of(block.get("server_id"))
    if version is None or version.partition(".")[0] != VERSION.partition(".")[0]:
        return SaidMgp(server_id=id)
    extensions = tuple(name for name in texts_of(block.get("extensions")) if name in offered)
    return SaidMgp(
        version,
        extensions,
        frozenset[str]().union(*(SECTIONS.get(name, frozenset()) for name in extensions)),
        tuple(name[:LONGEST_NAME] for name in texts_of(block.get("permissions_required"))[:MOST_PERMISSIONS]),
        id,
        text_of(block.get("trust_level")),
    )


def _block(terms: SessionTerms) -> Json:
    found = terms.capabilities
    if terms.stateless:
        return object_of(object_of(found.get("extensions")).get(EXTENSION_ID))
    return object_of(found.get("mgp")) or object_of(object_of(found.get("experimental")).get("mgp"))
