"""State (MCPL §8): a model that is kept for each caller, as a tree of checkpoints.

A call works on a value of its own; the change is kept if the call succeeds, and is lost otherwise. An id is never
authority: a checkpoint is found only in its owner's tree. What a host sends is checked, never trusted.
"""
