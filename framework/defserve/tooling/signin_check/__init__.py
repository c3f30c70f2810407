"""Walks the way of a client that signs in at a server, and says where it would stumble.

It only reads: nothing is registered, nobody signs in. A step that depends on one that failed is left out.

May import: `auth.challenges`, `auth.issuers`, `auth.jwt`, `auth.oauth`, `auth.urls`, `protocols.mcp.versions`.
"""
