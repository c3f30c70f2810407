"""Several processes at one address: a supervisor binds the socket, and workers inherit it.

Each worker is a fresh process of the same command line, and loads the server itself. The supervisor never reads from
the socket and runs no code of the author that the command did not run already. It starts workers, asks them whether
they live, starts one again that died, replaces all of them without a failed call, and ends them. A worker whose
supervisor is gone ends by itself.
"""
