"""Credentials of what is open: sessions, streams and sockets end with the key or token that they were opened with.

Each credential is verified again every few seconds, and at once if its store tells that it was revoked. Nothing runs
while nothing is open.

May import: `auth.options`, `auth.principals`, `auth.verifiers`.
"""
