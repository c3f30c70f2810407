"""Sessions that belong to all processes of a server: any of them answers any request of any session.

Each process knows the sessions it has served, and serves them without asking (`sessions.SharedSessions`). It hears when
one changes or ends. Events of a stream that can be resumed are in the shared store before their client sees them
(`streams`); who reads a stream follows it there, wherever its call runs (`reading`). An answer to a question, and a
cancellation, is handed to the process that it concerns.
"""
