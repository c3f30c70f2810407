"""What is left of a session when it is written down, so that another process can go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from defserve.core.extension import Offer

if TYPE_CHECKING:
    from defserve.core.session import Session

OFFER, READY, KEPT = "offer", "ready", "kept:"


def record_of(session: Session) -> dict[str, Any]:
    """The offer of an open session, whether its peer is ready, and what each extension keeps for it. JSON values."""
    assert session.terms is not None and session.terms.offer is not None
    offer = session.terms.offer
    record: dict[str, Any] = {OFFER: [offer.version, offer.capabilities, offer.info], READY: session.ready}
    for extension in session.composition.keepers:
        record |= {f"{KEPT}{extension.name}:{name}": value for name, value in extension.kept(session).items()}
    return record


def restore(session: Session, record: Mapping[str, Any]) -> None:
    """Make a session as its record says. It may have been open before."""
    if session.terms is None:
        version, capabilities, info = record[OFFER]
        session.open(Offer(version, capabilities, info))
    session.ready = bool(record.get(READY))
    for extension in session.composition.keepers:
        mine = f"{KEPT}{extension.name}:"
        kept = {name.removeprefix(mine): value for name, value in record.items() if name.startswith(mine)}
        extension.restore(session, kept)
