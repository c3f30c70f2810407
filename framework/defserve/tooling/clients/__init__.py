"""The settings files of MCP clients: where they are, what an entry looks like, and how to change only that entry.

An edit keeps every other byte of the file, or is refused. Files are replaced in one step, with a backup. Nothing here
starts a server or imports one.

May import: `host.addresses`, `host.targets`.
"""
