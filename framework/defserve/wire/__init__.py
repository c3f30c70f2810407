"""Bytes and messages: JSON-RPC encoded, decoded and cut into frames.

Any bytes give a message, or a `Malformed` that says what is wrong. Decoding never raises, whatever a peer sends.
There is no protocol and no I/O here.

May import: nothing else of the package.
"""
