"""What servers and clients of OAuth write in the same way: where metadata lies, how a client shows its secret, PKCE.

May import: nothing else of the package.
"""
