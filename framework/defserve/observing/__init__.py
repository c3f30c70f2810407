"""Seeing a server run: the log of requests, metrics for Prometheus, spans for OpenTelemetry.

Each watches requests from outside, as an extension, and only where it was asked for. Arguments and results are never
kept.

May import: `core`, `protocols.mcp`, `wire.messages`.
"""
