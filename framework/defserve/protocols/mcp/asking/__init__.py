"""Asking the client within a call: forms, confirmations, sampling, roots, in both eras.

With a handshake, a question is a request to the client. Without one, the question is left in the reply, and the
function runs again with the answers. Recorded answers are sealed, bound to their request, and accepted once.

May import: `auth.authority`, `binding`, `core.call`, `protocols.mcp.authorization`, `protocols.mcp.content`,
`protocols.mcp.lifecycle`, `protocols.mcp.params`, `stores.identity`, `stores.nonces`, `stores.store`,
`wire.messages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.client_requests import (
        ask,
        ask_url,
        can,
        can_confirm,
        choose,
        confirm,
        gather,
        once,
        roots,
        sample,
    )
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.protocols.mcp.asking.client_requests": (
                "ask ask_url can can_confirm choose confirm gather once roots sample"
            )
        },
    )

__all__ = ["ask", "ask_url", "can", "can_confirm", "choose", "confirm", "gather", "once", "roots", "sample"]
