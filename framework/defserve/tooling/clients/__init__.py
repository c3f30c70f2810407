"""The settings files of MCP clients: how to read them, and how to change only one entry.

An edit keeps every other byte of the file, or is refused. Files are replaced in one step, with a backup. Nothing here
starts a server or imports one.

May import: `host.clients.table`, `host.targets`.
"""
