"""Commands that serve until they are interrupted: a server, one that reloads, many as one, a gateway.

May import: `auth.urls`, `cli`, `gateway`, `host`, `kernel`, `runner`, `serving.workers`, `tooling.devserver`.
"""
