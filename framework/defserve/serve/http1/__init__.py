"""HTTP/1.1 and WebSockets on sockets: an ASGI server of our own, made for short requests that come again and again.

It promises: whatever a peer sends is bounded in bytes and time, a request that two readers could read in two ways is
refused, and a request whose app waits for nothing is answered in the step in which its last byte came.
"""
