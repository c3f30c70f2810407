"""The audit trail (MGP §6): what happened, to whom, at whose wish.

Every event goes to all sinks, and to a peer that negotiated it. Of arguments only size and fingerprint are told. A
dangerous call is recorded before it runs, and does not run if it cannot be.

May import: `core`, `wire`, `stores.audit`, `protocols.mcp`, `protocols.mgp.agreed`, `protocols.mgp.instants`,
`protocols.mgp.security`.
"""
