"""Workers: their leases, and what they send one another."""

from __future__ import annotations

from typing import Final

from defserve.stores.shared.scripts.head import HEAD

# field, value, …: something that every worker should receive
PUBLISH: Final = HEAD + "news(unpack(ARGV, 2)) return 1"

# field, value, …: something for the worker that knows what it is about; nobody receives it later
SIGNAL: Final = HEAD + "signal(unpack(ARGV, 2)) return 1"

# worker, field, value, …: something for one worker → 1; 0: it does not live; FULL: so is its mailbox
# Clients choose the worker: one that does not live gets no mailbox.
MAIL: Final = HEAD + "return alive(ARGV[2]) and (mail(ARGV[2], unpack(ARGV, 3)) and 1 or -1) or 0"
FULL: Final = -1

# worker, ttl of its lease, the last news and the last mail it has read → whether it had a lease, and got all its mail
RENEW: Final = (
    HEAD
    + """
local worker, box, sizes = ARGV[2], P .. 'mail:' .. ARGV[2], P .. 'size:mail:' .. ARGV[2]
local had = call('EXISTS', P .. 'lease:' .. worker)
call('SET', P .. 'lease:' .. worker, 1, 'PX', ARGV[3])
call('SET', P .. 'read:' .. worker, ARGV[4], 'PX', 604800000)
local last = call('XRANGE', box, ARGV[5], ARGV[5])[1]
if last then
  call('HSET', sizes, 'read', field_of(last[2], 'b') or 0)
  keep(sizes, MAIL.ttl)
end
call('XTRIM', box, 'MINID', '=', ARGV[5])
if call('HDEL', sizes, 'lost') == 1 then return 0 end
return had
"""
)

# worker, … → whether each of them lives
ALIVE: Final = (
    HEAD
    + """
local found = {}
for at = 2, #ARGV do found[at - 1] = alive(ARGV[at]) and 1 or 0 end
return found
"""
)

# worker, the last news it has read: it ends
LEAVE: Final = (
    HEAD
    + """
local worker = ARGV[2]
call('SET', P .. 'read:' .. worker, ARGV[3], 'PX', 604800000)
call('DEL', P .. 'lease:' .. worker, P .. 'mail:' .. worker, P .. 'size:mail:' .. worker)
return 1
"""
)
