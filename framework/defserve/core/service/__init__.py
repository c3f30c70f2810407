"""A server as a whole: how far it is in being served, and which sessions are open. It knows no call and no extension.

May import: `core.identity`, `wire.messages`.
"""
