"""Permissions of a server (MGP §3): who approves them, and what was granted.

The server is told the decision and cannot change it. An expired grant counts as none.

May import: `host.answers`, `host.mgp.audit.trail`, `host.person`, `protocols.mgp`.
"""
