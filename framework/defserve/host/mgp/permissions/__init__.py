"""Permissions of a server (MGP §3): who approves them, and what was granted.

The server is told the decision and cannot change it. An expired grant does not count.

May import: `host.answers`, `host.mgp.audit.trail`, `host.person`, `protocols.mgp`.
"""
