"""A small HTTP/1.1 client for one origin: connections are kept and used again, bodies are read as they come.

It needs nothing but the standard library. Whatever the server sends is bounded: heads and chunk sizes here, bodies by
whoever reads them, and nothing is read ahead of a slow reader. A request is sent once: it is repeated only if the
caller says that it may be, and only if a kept connection ended before one byte of the response came.
Where the environment names a proxy for the address, httpx2 does the same work (`proxied`).

May import: `auth.oauth.basic`, `auth.urls`, `host.link`.
"""
