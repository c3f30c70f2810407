"""Event channels (MGP §13.1–13.3, §13.5): emitted once, told to those who subscribed and whom the event concerns.

Emitting never waits for a reader. What a reader is too slow for is dropped, oldest first, and the gap is named.

May import: `core`, `wire`, `auth.principals`, `protocols.mcp`, `protocols.mgp.instants`.
"""
