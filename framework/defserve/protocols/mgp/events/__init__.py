"""Event channels (MGP §13.1–13.3, §13.5): an event is emitted once, and goes to the subscribers that it concerns.

Emitting never waits for a reader. If a reader is too slow, the oldest events are dropped, and it is told which.

May import: `core`, `wire`, `auth.authority`, `auth.principals`, `auth.remembered`, `protocols.mcp`,
`protocols.mgp.instants`.
"""
