"""What the panels of the page ask their host side for. Each panel has its table of verbs.

A verb takes the inspection and the request, and returns what the page gets, as JSON. It raises the errors of a client
as they are: the page shows them with their `fix:`.
"""
