"""Credentials of what is open: sessions, streams and sockets end with the key or token that they were opened with.

Each credential is verified again every few seconds. Nothing runs while nothing is open.

May import: `auth.options`, `auth.principals`.
"""
