"""Channels (MCPL §14): where messages come in and go out, such as a chat room of another service.

A channel that the author adds is shared by all hosts; one that a host opens belongs to its session alone. What concerns
one channel happens in order. A host's scopes are checked before a channel is used.
"""
