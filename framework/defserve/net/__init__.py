"""An HTTP client that reaches only public addresses, even if a stranger chose the URL.

A name is resolved once, every address is judged, and the connection goes to one of the judged addresses. Sizes and
times are bounded, redirects are judged again, and credentials do not cross origins.

May import: `guard.network.urls`, `guard.verdict`.
"""
