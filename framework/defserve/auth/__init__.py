"""Who may call, and how often: headers and tokens in, principals and challenges out.

A verifier returns None for a bad token and never raises. An identity comes only from a verified token, the transport
or the network address. Names are loaded when they are first used: a server without `auth` loads none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.auth.api_keys import ApiKeys
    from defserve.auth.auth_options import Auth
    from defserve.auth.bearer_tokens import StaticTokens, TokenVerifier
    from defserve.auth.dpop import DPoP
    from defserve.auth.introspection import Introspection
    from defserve.auth.issuers import Issuers, IssuerUnavailable
    from defserve.auth.principals import Principal
    from defserve.auth.proxy.assertions import RegisteredClient, TrustedIssuer
    from defserve.auth.proxy.oauth_proxy import OAuthProxy
    from defserve.auth.proxy.vendors import Vendor
    from defserve.auth.rates import Rate
    from defserve.auth.signed_tokens import JWT, OIDC, DeniedTokens
    from defserve.auth.token_exchange import OnBehalfOf
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.auth.api_keys": "ApiKeys",
            "defserve.auth.rates": "Rate",
            "defserve.auth.dpop": "DPoP",
            "defserve.auth.introspection": "Introspection",
            "defserve.auth.issuers": "IssuerUnavailable Issuers",
            "defserve.auth.signed_tokens": "DeniedTokens OIDC JWT",
            "defserve.auth.token_exchange": "OnBehalfOf",
            "defserve.auth.auth_options": "Auth",
            "defserve.auth.principals": "Principal",
            "defserve.auth.proxy.assertions": "RegisteredClient TrustedIssuer",
            "defserve.auth.proxy.oauth_proxy": "OAuthProxy",
            "defserve.auth.proxy.vendors": "Vendor",
            "defserve.auth.bearer_tokens": "StaticTokens TokenVerifier",
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
    "OnBehalfOf",
    "Principal",
    "Rate",
    "RegisteredClient",
    "StaticTokens",
    "TokenVerifier",
    "TrustedIssuer",
    "Vendor",
]
