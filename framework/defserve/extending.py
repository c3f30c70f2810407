"""Everything that authors of extensions and stores import. `Extension` says what an extension may contribute."""

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, Next, Offer, Provider, Stages, Wrapper
from defserve.core.peer import Profile
from defserve.core.session import Session
from defserve.stores.store import (
    Store,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = [
    "Call",
    "Extension",
    "Handler",
    "Listener",
    "Next",
    "Offer",
    "Profile",
    "Provider",
    "Session",
    "Stages",
    "Store",
    "StoreBusy",
    "StoreChange",
    "StoreCorrupt",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "Wrapper",
]
