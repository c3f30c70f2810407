"""MCPL 0.5 §8: `mcpl/manifestChanged`. A host that was told a manifest is told when another one has taken its place."""

from __future__ import annotations

from collections.abc import Callable

from defserve.core.session import Session
from defserve.protocols.mcpl.manifest.digest import NoDigest, changed_domains
from defserve.protocols.mcpl.policies import LiveTerms
from defserve.wire.messages import Params

CHANGED = "mcpl/manifestChanged"


def announce(session: Session, live: LiveTerms, manifest: Callable[[], Params]) -> None:
    """Tell a host that its manifest has changed, if it has."""
    before, now = live.announced, manifest()
    if before is None or before == now:
        return
    live.announced = now
    if (revision := now.get("revision")) is None or revision == before.get("revision"):
        return
    try:
        domains = changed_domains(before, now)
    except NoDigest:
        return
    session.notify(CHANGED, {"revision": revision, "domains": domains})
