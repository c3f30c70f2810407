"""Seeing a server run: what every way of watching has in common, the request log, and metrics. Only when asked for."""
