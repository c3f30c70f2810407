"""A kernel, from the command line: what is asked of one that runs, and how its answers are printed.

What servers wrote is only data here, so everything that is printed is escaped.

May import: `cli`, `kernel.config`, `kernel.control`.
"""
