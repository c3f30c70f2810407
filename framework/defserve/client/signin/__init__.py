"""Signing in to servers (OAuth 2.1 as MCP uses it): who issues tokens, how to get them, where they are kept.

Nothing here is imported until a server asks for a token, or somebody signs in. A token goes only to the server it was
made for. Every address that a peer names is judged before it is used (`fetching`), and whatever comes from there is
bounded. A sign-in belongs to one issuer, whose name is compared as plain text. No secret is in a message, a log or the
text of an object.

By hand, because Authlib's clients are made for sessions of requests and httpx, and know neither resource metadata nor
URL ids: what is left of them are query strings. What is signed, PyJWT signs (extra `auth`).
"""
