"""What servers do without the rules of `families/rules`. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from tests.attack.controls.patching import Patch

# -- whose a value is ------------------------------------------------------------------------------------

IDENTITY = "defserve.stores.identity:ServerIdentity"


def seal_for_all_servers(patch: Patch) -> None:
    """One key a purpose, whichever server seals."""
    from defserve.stores.identity import NOBODY, ServerIdentity

    derive = ServerIdentity.derive_key
    patch.set(f"{IDENTITY}.derive_key", lambda self, secret, purpose: derive(NOBODY, secret, purpose))


def keep_all_servers_together(patch: Patch) -> None:
    """One part of a store, whichever server keeps."""
    patch.set(f"{IDENTITY}.make_prefix", lambda self, base="": f"{base}server:all:")


def know_no_server(patch: Patch) -> None:
    seal_for_all_servers(patch)
    keep_all_servers_together(patch)
