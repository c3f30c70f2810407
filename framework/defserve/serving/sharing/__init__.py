"""Several processes as one server: what they share beside their sessions, and how each part of it is connected.

Each file connects one feature to the link. A feature that nobody shares knows nothing of it: it has a field for who
counts, keeps or passes on for all processes, and the field is None.

May import: `auth`, `core`, `protocols.mcp`, `protocols.mcpl.extension`, `protocols.mgp.access.policy`,
`protocols.mgp.events`, `protocols.mgp.extension`, `stores.identity`, `stores.shared`, `stores.store`,
`transports.http`, `wire`.
"""
