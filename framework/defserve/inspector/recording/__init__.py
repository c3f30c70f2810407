"""The timeline: every message of every conversation, both ways, in the order in which it passed.

Memory is bounded: old bodies go to a file that nobody else can open, and the oldest messages are forgotten. Secrets are
masked whenever a message is shown.
"""
