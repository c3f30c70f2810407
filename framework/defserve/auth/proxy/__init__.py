"""An authorization server of our own, for vendors that MCP clients cannot register with.

Register, authorize, callback and token may each reach another process: all that is between them is sealed and carried
by the client or the browser, or lies in the store. The vendor's tokens stay here. Needs PyJWT and cryptography, and
httpx2 for clients that are known by a URL.

| | |
|---|---|
| `clients/` | who may sign users in |
| `consent/` | the question to the user |
| `vendors/` | who knows the users |
| `signing_in.py` | the way of a browser |
| `allowing.py`, `scope_rule.py` | who may come in, and with which scopes |
| `tokens.py`, `grants.py` | what comes of it |

May import: `auth.bearer`, `auth.buckets`, `auth.issuers`, `auth.jwt`, `auth.oauth`, `auth.options`, `auth.principals`,
`auth.site`, `auth.urls`, `net.client`, `net.egress`, `stores.identity`, `stores.memory`, `stores.nonces`,
`stores.spaces`, `stores.store`.
"""
