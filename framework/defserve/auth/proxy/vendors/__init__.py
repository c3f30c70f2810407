"""Those who know the users: a table of vendors, and signing a user in there.

May import: `auth.issuers`, `auth.jwt`, `auth.oauth`, `auth.principals`, `auth.proxy.errors`, `auth.urls`.
"""
