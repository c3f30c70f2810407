"""The clients that sign users in here: registered (RFC 7591), or described by a document at their own URL (CIMD).

A registration is sealed into the client's id, so nothing is kept, and nobody can fill a store by registering.

May import: `auth.buckets`, `auth.oauth`, `auth.proxy.errors`, `auth.proxy.seals`, `auth.site`, `auth.urls`,
`net.client`, `net.egress`.
"""
