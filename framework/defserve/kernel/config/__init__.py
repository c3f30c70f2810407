"""mgp.toml: what it may say, and what it says.

Every mistake is named with its line before anything starts. Variables stay unfilled in the objects that come out, so
those can be shown; they are filled in only where a server is started.
"""
