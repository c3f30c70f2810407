"""Tools that the person has started and that go on: tasks of the server, and plain calls where there are none.

Each is followed until it is over: by its notifications where the server sends them, else by asking as often as the
server wishes. What is kept of each is bounded, in number and in bytes.

May import: `host`, `inspector.protocol`, `inspector.questions`, `wire.messages`.
"""
