"""APIs as servers: the operations of an OpenAPI document become tools. `Server.from_openapi` is the way in.

A document only describes. It cannot choose where requests go, what is sent along, or which other documents are read;
the author does. Schemas are made when they are needed, so that a document of a thousand operations loads in seconds.
A server that imports no API loads none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.openapi.sending import ApiKey, Basic, Bearer, CallerToken, Credentials, PerCaller
    from defserve.openapi.tool import pages
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.openapi.tool": "pages",
            "defserve.openapi.sending": "ApiKey Basic Bearer CallerToken Credentials PerCaller",
        },
    )

__all__ = ["ApiKey", "Basic", "Bearer", "CallerToken", "Credentials", "PerCaller", "pages"]
