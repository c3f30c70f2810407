"""Inference for servers (MCPL §11, §12): which model answers, and how the answer is sent.

A request without a routed model is refused. `ScriptedModel` is a model for tests.

May import: `host.answers`, `host.caller`, `host.fields`, `host.mcpl`, `protocols.mcp.params`, `protocols.mcpl`, `wire`.
"""
