"""MCP Events, a draft: servers tell clients what happened, by poll, stream and webhook.

A server has it with `Server(…, experimental=["events"])`, and imports none of it otherwise. `draft` holds every name
and number that may still change. An event is one entry in an ordered, bounded log (`event_log`); a poll, a stream
(`streams`) and a webhook (`webhooks`) are readers of that log, each at a position of its own. So a slow
reader holds up nobody, and what was acknowledged to who emitted it is not lost before the log lets go of it.
"""
