"""Tokens that are bound to a key (DPoP, RFC 9449): each request proves that its sender has the key.

A proof is good once, for one method and one URL, and for seconds. Used proofs are remembered in a store, so processes
that share it do not accept one twice. Needs PyJWT.

May import: `auth.jwt.signing_keys`, `stores.identity`, `stores.memory`, `stores.nonces`, `stores.store`.
"""
