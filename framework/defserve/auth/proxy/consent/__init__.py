"""The page on which a user allows a client to sign in, and the cookies that make it safe.

No other site can show the page in a frame, press its button, or finish a sign-in that another browser began.

May import: `auth.proxy.clients`, `auth.proxy.errors`, `auth.proxy.requests`, `auth.proxy.seals`, `auth.site`.
"""
