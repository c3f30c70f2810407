"""MCPL lets a server take part in a conversation: push events, hook into the model's turns, ask it, keep state.

A host switches each feature set on and off, or grants what it uses; what it has not enabled does not act. Hosts of two
versions are served at once: `vocabulary` says what a version means. Hosts without MCPL see the tools and nothing else.

The sections are `channels`, `hooks`, `inference`, `push` and `state`. `extension` and `feature_sets` import them when
they are needed, and no section imports these two.
"""
