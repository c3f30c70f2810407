"""The development server: a parent that keeps the clients connected, and a child that is replaced on every change.

Every request is answered once, by the child that took it or with an error. A child that does not start changes nothing.
"""
