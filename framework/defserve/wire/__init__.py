"""Bytes and messages: JSON-RPC encoded, decoded and cut into frames.

Any bytes give a message or a `Malformed` that says why not; nothing here raises for what a peer sends. It knows no
protocol and does no I/O.

May import: nothing else of the package.
"""
