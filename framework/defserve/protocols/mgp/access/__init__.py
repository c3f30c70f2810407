"""Access control (MGP §5): which agents see and call which tools, and the methods by which an admin changes that.

The caller is the agent that the transport authenticated; an id in a message is never authority. A change that cannot be
recorded is not made.

May import: `core`, `wire`, `auth.authority`, `auth.permissions`, `auth.principals`, `protocols.mcp`,
`protocols.mgp.audit`, `protocols.mgp.errors`, `protocols.mgp.instants`.
"""
