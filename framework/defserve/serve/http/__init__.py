"""HTTP as a plain ASGI application: Streamable HTTP for both eras, HTTP+SSE for old clients, and REST.

A request passes the gate, its route and authentication before its body is read. A response is JSON, or a stream of
events if it must be. Messages that wait for a slow client are bounded, and delay no other client.
"""
