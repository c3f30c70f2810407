"""One call on its way to a backend and back, in all four pairs of eras (`relay`), and calls that wait (`parking`).

May import: `core`, `host`, `protocols.mcp`, `proxying.conversations`, `proxying.failures`, `proxying.targets`, `wire`.
"""
