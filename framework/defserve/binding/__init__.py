"""A Python function made callable from JSON: its signature read once, its values injected, its results packed.

Everything is decided when a function is registered, and complaints come then as UsageError. A call only runs the plan.

May import: nothing else of the package.
"""
