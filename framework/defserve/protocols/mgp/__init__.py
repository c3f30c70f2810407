"""MGP: security that tools declare, enforced for every peer and shown to those that speak the protocol.

`extension.MGP` puts the sections together. Each section is a room, and is imported when it is first needed: a server
without marks imports none. A peer that speaks less than MGP loses fields on the wire, never protection.

May import: `auth.authority`, `core`, `wire`, `protocols.mcp`, `guard.argument_types`, `net`.
"""
