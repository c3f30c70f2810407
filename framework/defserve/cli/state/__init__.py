"""Checkpoints in a store, looked at from the command line.

Every action takes an opened store and the options, prints, and returns the exit code. Owners come from callers, so
what is printed is escaped.

May import: `cli.screen`, `protocols.mcp.asking.server_secret`, `stores`.
"""
