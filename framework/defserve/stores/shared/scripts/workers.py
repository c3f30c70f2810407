"""Workers: their leases, and what they send one another."""

from __future__ import annotations

from typing import Final

from defserve.stores.shared.scripts.head import HEAD

# A writer numbers what it writes. What is repeated, because its reply was lost, does nothing.
_ONCE: Final = """
local function is_new(writer, number)
  local key = P .. 'written:' .. writer
  if number == '' then return true end
  if tonumber(number) <= tonumber(call('GET', key) or 0) then return false end
  call('SET', key, number, 'PX', NEWS.ttl)
  return true
end
"""

# worker, number, field, value, …: something that every worker should receive → the id of the newest news
PUBLISH: Final = (
    HEAD
    + _ONCE
    + """
if is_new(ARGV[2], ARGV[3]) then return news(unpack(ARGV, 4)) end
return call('XREVRANGE', P .. 'news', '+', '-', 'COUNT', 1)[1][1]
"""
)

# field, value, …: something for the worker that knows what it is about; nobody receives it later
SIGNAL: Final = HEAD + "signal(unpack(ARGV, 2)) return 1"

# writer, number or '', worker, field, value, …: something for one worker → 1; 0: it does not live; FULL: so is its
# mailbox. Clients choose the worker: one that does not live gets no mailbox.
MAIL: Final = (
    HEAD
    + _ONCE
    + """
if not alive(ARGV[4]) then return 0 end
return (not is_new(ARGV[2], ARGV[3]) or mail(ARGV[4], unpack(ARGV, 5))) and 1 or -1
"""
)
FULL: Final = -1

# worker, ttl of its lease, the last news and the last mail it has read → whether it had a lease, and got all its mail.
# If that mail is not there, the mailbox is a new one, whose ids may be lower: none of it was read.
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
  call('XTRIM', box, 'MINID', '=', ARGV[5])
end
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
