"""What commands print: they give blocks, this room draws them.

At a terminal with `rich` installed, blocks are coloured and fitted to its width. Everywhere else (a pipe, a dumb
terminal, no `rich`) they are plain text that stays the same, so scripts can read it. `NO_COLOR` turns colours off.
`rich` is imported only when something is drawn. Text of servers cannot move the cursor: it is escaped.

May import: nothing else.
"""
