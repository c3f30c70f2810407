"""The MCP clients of others: what each calls itself, and how it writes a server in its settings.

The command line writes such an entry (`tooling.clients`), and the page for browsers shows it. Nothing here reads or
writes a file.

May import: `host.addresses`.
"""
