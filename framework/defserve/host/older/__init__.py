"""Servers that are older than what we ask, or do not keep to it: what they lack, and what makes them go silent.

May import: `host.fields`, `transports.client_errors`, `wire`.
"""
