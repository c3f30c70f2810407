"""One conversation with one peer: sessions, calls, and the extensions that a server is made of.

It does no I/O, sets no timers, and knows no protocol by name. The runner implements `engine.Engine`; a protocol is an
`extension.Extension`. Start with `session.py`. These files belong together: they may know each other's types.

May import: `wire`.
"""
