"""What issuers of tokens publish and answer: bounded requests to them, their metadata, and which one a token names.

An issuer is trusted with identities, so its addresses are https, or on this machine. No redirect is followed.

May import: `auth.bearer`, `auth.oauth`, `auth.principals`, `auth.urls`, `auth.verifiers`,
`stores.identity`.
"""
