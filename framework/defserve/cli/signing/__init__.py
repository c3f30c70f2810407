"""Signing in at the terminal: the person is taken to the issuer, and told what came of it.

May import: `cli.screen`, `cli.target.refusals`, `host`, `transports.client_errors`.
"""
