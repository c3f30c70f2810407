"""Streaming (MGP §12): parts of a result, sent while the call runs, in order and no faster than they are read.

The final response holds all of them again. At most 64 KiB of a call wait for the reader; then the function waits too.

May import: `auth.authority`, `core`, `wire`, `protocols.mcp`.
"""
