"""Shell completion: the tree of commands and options, and the scripts made from it.

The tree is read from the commands' own parsers, so it cannot fall behind them. The table of commands is handed in
from above, because it names the completion command too.

May import: `cli.parser`.
"""
