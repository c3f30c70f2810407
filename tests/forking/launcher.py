"""`python launcher.py SOCKET SCRIPT ARGS…` has the forker at SOCKET run the script, and ends as it ends.

Imports only what is built in, for it runs hundreds of times.
"""

import _socket
import marshal
import os
import sys

STREAMS = (0, 1, 2)

forker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
forker.connect(sys.argv[1])
job = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in STREAMS)
forker.sendmsg([len(job).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while job:
    job = job[forker.send(job) :]
# They are the script's now: when it closes them, they are closed.
for stream in STREAMS:
    os.close(stream)
forker.recv(4)  # which process it is
said = forker.recv(2)
status = int.from_bytes(said, "big") if said else 1
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
