"""`defserve top`: what goes on in a server or kernel that runs, as figures that change.

A *source* gives snapshots. A page is made of two of them: totals, and what happened between them. Names come from
elsewhere, so they are escaped where they are printed; what a server sends is bounded.

May import: `auth.local_token`, `cli`, `host`, `kernel.control.asking`, `kernel.control.places`, `tooling.listing`.
"""
