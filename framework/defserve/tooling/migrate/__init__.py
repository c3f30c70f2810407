"""A server of FastMCP or of the official SDK, rewritten to defserve. Comments and layout stay as they are.

What cannot be rewritten is left alone and reported with its line: nothing is guessed. Needs libcst, which only this
room imports.
"""
