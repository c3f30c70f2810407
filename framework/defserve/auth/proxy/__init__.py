"""An authorization server of our own, for vendors that MCP clients cannot register with.

Register, authorize, callback and token may each reach another process: all that is between them is sealed and carried
by the client or the browser, or lies in the store. The vendor's tokens stay here. Needs PyJWT and cryptography, and
httpx2 for clients that are known by a URL.

| | |
|---|---|
| `oauth_proxy.py` | `OAuthProxy`, and its endpoints by path |
| `clients.py` | who may sign users in |
| `authorization_requests.py` | what a client asks for, who may come in, and with which scopes |
| `sign_in.py` | the way of a browser, and the question to the user |
| `vendors.py` | who knows the users |
| `tokens.py` | what comes of it |
"""
