"""The manifest (MCPL §5.1, 0.5 §8): what a server tells a host about MCPL, its digest, and telling that it changed.

A digest depends on the content alone, not on the order of members or on how often a use is listed. A change is told
once, and only if the digest has moved.

May import: `core`, `wire`, `protocols.mcpl.policies`, `protocols.mcpl.section_registry`, `protocols.mcpl.vocabulary`.
"""
