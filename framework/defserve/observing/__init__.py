"""Seeing a server run: the log of requests, metrics for Prometheus, spans for OpenTelemetry.

Each is an extension that watches requests from outside. None is active unless it is switched on. Arguments and results
are never kept.

May import: `core`, `protocols.mcp`, `wire.messages`.
"""
