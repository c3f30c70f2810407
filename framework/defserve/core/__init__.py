"""One conversation with one peer: its messages, sessions and calls, and the extensions that a server is made of.

It does no I/O, sets no timers, and knows no protocol by name. `serve` implements `engine.Engine`; a protocol is an
`extension.Extension`. Any bytes give a message, or a `MalformedMessage` that says what is wrong: decoding never raises,
whatever a peer sends. Start with `session.py`.
"""
