"""Permissions (MGP §3): what a caller's tools may use, by the operator's policy and the client's decisions.

A tool runs only if everything it needs is approved. The client decides last. An anonymous client can give up
permissions, but not grant them.

May import: `core`, `wire`, `auth.authority`, `auth.principals`, `protocols.mcp`, `protocols.mgp.agreed`,
`protocols.mgp.audit`, `protocols.mgp.errors`, `protocols.mgp.instants`, `protocols.mgp.options`,
`protocols.mgp.security`.
"""
