"""Names that models can use: of tools and of their arguments. Unique, at most 64 characters, readable.

May import: `openapi.documents`.
"""
