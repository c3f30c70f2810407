"""Commands for who uses a server or a topic, and who makes a server known to a client.

May import: `auth.local_token`, `auth.urls`, `cli`, `host`, `tooling`, `wire.codec`, `wire.messages`.
"""
