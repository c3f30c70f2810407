"""Checkpoints: the states of a feature set as a tree that can be rolled back, branched, compared and pruned.

Every change is one atomic step in a store, so no commit is lost and no tree forks unseen. An id is bound to its owner
and its content by a MAC. Reading a checkpoint costs the same at any depth.
"""
