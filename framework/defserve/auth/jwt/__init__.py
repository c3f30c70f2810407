"""Signed tokens (JWT): keys and where they come from, signatures, expiry, and tokens that were taken back.

Needs PyJWT and cryptography, which are imported when the first verifier is made.

May import: `auth.bearer`, `auth.issuers`, `auth.principals`, `auth.urls`, `stores.identity`, `stores.spaces`,
`stores.store`.
"""
