"""How a person gets to the issuer's page and back to us: by a browser of this machine, or by hand.

Who waits for a person listens on a loopback address alone, and takes only the answer to its own attempt.

May import: `host.signin.errors`.
"""
