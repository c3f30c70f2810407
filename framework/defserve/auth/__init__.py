"""Who may call, and how often: headers and tokens in, principals and challenges out.

A verifier returns None for a bad token and never raises. An identity comes only from a verified token, the transport
or the network address. Names are loaded when they are first used: a server without `auth` loads none of this.

May import: `net.client`, `net.egress`, `stores.files`, `stores.formats`, `stores.identity`, `stores.memory`,
`stores.nonces`, `stores.spaces`, `stores.store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy

if TYPE_CHECKING:
    from defserve.auth.api_keys import ApiKeys
    from defserve.auth.buckets import Rate
    from defserve.auth.dpop.proofs import DPoP
    from defserve.auth.introspection.verifier import Introspection
    from defserve.auth.issuers.fetching import IssuerUnavailable
    from defserve.auth.issuers.several import Issuers
    from defserve.auth.jwt.denied_tokens import DeniedTokens
    from defserve.auth.jwt.oidc import OIDC
    from defserve.auth.jwt.verifier import JWT
    from defserve.auth.options import Auth
    from defserve.auth.principals import Principal
    from defserve.auth.proxy.proxy import OAuthProxy
    from defserve.auth.proxy.vendors.table import Vendor
    from defserve.auth.verifiers import StaticTokens, TokenVerifier
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.auth.api_keys": "ApiKeys",
            "defserve.auth.buckets": "Rate",
            "defserve.auth.dpop.proofs": "DPoP",
            "defserve.auth.introspection.verifier": "Introspection",
            "defserve.auth.issuers.fetching": "IssuerUnavailable",
            "defserve.auth.issuers.several": "Issuers",
            "defserve.auth.jwt.denied_tokens": "DeniedTokens",
            "defserve.auth.jwt.oidc": "OIDC",
            "defserve.auth.jwt.verifier": "JWT",
            "defserve.auth.options": "Auth",
            "defserve.auth.principals": "Principal",
            "defserve.auth.proxy.proxy": "OAuthProxy",
            "defserve.auth.proxy.vendors.table": "Vendor",
            "defserve.auth.verifiers": "StaticTokens TokenVerifier",
        },
    )

__all__ = [
    "ApiKeys",
    "Auth",
    "DPoP",
    "DeniedTokens",
    "Introspection",
    "IssuerUnavailable",
    "Issuers",
    "JWT",
    "OAuthProxy",
    "OIDC",
    "Principal",
    "Rate",
    "StaticTokens",
    "TokenVerifier",
    "Vendor",
]
