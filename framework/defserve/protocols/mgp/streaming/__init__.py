"""Streaming (MGP §12): what a call gives on the way, sent in order and no faster than its reader takes it.

The final response holds all of it again. At most 64 KiB of a call wait for the reader; the function waits meanwhile.

May import: `core`, `wire`, `protocols.mcp`.
"""
