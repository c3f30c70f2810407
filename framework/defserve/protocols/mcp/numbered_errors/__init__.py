"""Errors by number: ten kinds, each with a JSON-RPC code of its own and suggestions. Opt-in.

Sessions without a handshake never see these codes, because 2026-07-28 reserves them.

May import: `core`, `protocols.mcp.failures`, `protocols.mcp.trace`, `wire.messages`.
"""
