"""A gateway for MCPx: topics over WebSocket, who is in them, what each may send, and who receives it.

It never looks into payloads. Senders cannot forge their identity or send more than their capabilities allow. A slow
reader is dropped; it never holds up a topic.
"""

from __future__ import annotations

from defserve.gateway.policy import Admission

__all__ = ["Admission"]
