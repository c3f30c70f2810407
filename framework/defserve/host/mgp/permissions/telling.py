"""MGP §3.5, §3.6 on the wire: a server is asked to wait for decisions, and told of them. Each method has two names."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from defserve.errors import MethodNotFound, PeerError
from defserve.host.mgp.permissions.approval import Grant
from defserve.protocols.mgp import instants

Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

# The same request by its older and its newer name, in the order they are tried.
ASK: Final = ("mgp/permission/request", "mgp/permission/await")
TELL: Final = ("mgp/permission/grant", "mgp/permission/response")

log = logging.getLogger("defserve.host")


async def tell_grants(send: Send, id: str, decided: Mapping[str, Grant], by: str) -> None:
    """Tell a server what was decided about its permissions."""
    # §3.6 has one expiry for all grants of a message.
    for until in dict.fromkeys(grant.expires_at for grant in decided.values()):
        grants = {name: grant.decision for name, grant in decided.items() if grant.expires_at == until}
        told = {"request_id": id, "grants": grants, "approved_by": by}
        await send_known(send, TELL, {**told, "expires_at": instants.wire(until)})


async def send_known(send: Send, methods: Sequence[str], params: Mapping[str, Any]) -> None:
    """Send it under the first name that the server knows. Our own refusals apply in any case."""
    for method in methods:
        try:
            await send(method, params)
            return
        except PeerError as error:
            if type(error) is not PeerError:
                raise
            if error.code != MethodNotFound.code:
                log.warning("the server did not take %s: %s", method, error)
                return
    log.warning("the server does not know %s", " or ".join(methods))
