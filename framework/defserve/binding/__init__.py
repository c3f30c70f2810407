"""A Python function made callable from JSON: its signature read once, its values injected, its results packed.

All decisions are made when a function is registered, and UsageError is raised then. A call only executes them.
"""
