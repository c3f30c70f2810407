"""Responses of the API → results of a tool: structured content, text, pictures, files, errors, and the next page.

May import: `binding.arguments.compact`, `binding.content`, `binding.packers`, `binding.results`, `openapi.documents`,
`openapi.requests`, `openapi.schemas`.
"""
