"""Checks, step by step, what a client needs to sign in at a server, and says what would stop one.

It only reads: nothing is registered, nobody signs in. A step that depends on one that failed is left out.

May import: `auth.challenges`, `auth.issuers`, `auth.jwt`, `auth.oauth`, `auth.urls`, `protocols.mcp.versions`.
"""
