"""The connections to a server: a child process, an HTTP address, a WebSocket. Each is a `Link`.

A link carries whole JSON messages and says why the server left. It knows only the methods that its transport needs
(headers, sessions, cancellation).
"""
