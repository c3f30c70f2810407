"""Sessions: their records, who owns them, and how many a caller has."""

from __future__ import annotations

from typing import Final

from defserve.stores.shared.scripts.head import HEAD

# session, worker, ttl, account, its limit or '', field, value, … → whether there was room
OPEN: Final = (
    HEAD
    + """
local id, worker, ttl, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local key, account, time = P .. 'session:' .. id, P .. 'account:' .. ARGV[5], now()
if call('EXISTS', key) == 1 then return 1 end
call('ZREMRANGEBYSCORE', account, '-inf', time)
if limit and call('ZCARD', account) >= limit then return 0 end
call('ZADD', account, time + ttl, id)
keep(account, ttl)
local last = call('XREVRANGE', P .. 'news', '+', '-', 'COUNT', 1)
local newest = last[1] and last[1][1] or '0-0'
call('HSET', key, 'owner', worker, 'account', ARGV[5], 'delivered', newest, 'opened', newest)
for at = 7, #ARGV, 2 do call('HSET', key, ARGV[at], ARGV[at + 1]) end
keep(key, ttl)
return 1
"""
)

# account → its sessions
OF_ACCOUNT: Final = HEAD + "return call('ZRANGEBYSCORE', P .. 'account:' .. ARGV[2], now(), '+inf')"

# session → the record, and whether its owner lives; or nothing
LOAD: Final = (
    HEAD
    + """
local key = P .. 'session:' .. ARGV[2]
local record = call('HGETALL', key)
if #record == 0 then return false end
return {record, alive(call('HGET', key, 'owner')) and 1 or 0}
"""
)

# session, worker → the news after which this worker, as its new owner, must deliver, and the news that says that it is
# the owner, by which its claim is known; nothing if another one owns it, or if this one has delivered everything
CLAIM: Final = (
    HEAD
    + """
local key, worker = P .. 'session:' .. ARGV[2], ARGV[3]
if call('EXISTS', key) == 0 then return false end
local owner = call('HGET', key, 'owner')
if owner == worker then
  local since = call('HGET', key, 'since')
  return since and {since, call('HGET', key, 'claim')}
end
if alive(owner) then return false end
-- An owner that died before it had delivered what the one before had left: its own count does not say so.
local since = call('HGET', key, 'since') or owner and owner ~= '' and call('GET', P .. 'read:' .. owner) or '0-0'
local opened = call('HGET', key, 'opened') or '0-0'
if is_later(opened, since) then since = opened end
local claim = news('t', 'owner', 's', ARGV[2], 'w', worker)
call('HSET', key, 'owner', worker, 'since', since, 'claim', claim)
return {since, claim}
"""
)

# session, claim, news: who made this claim has delivered what was left to it up to there
GOT_TO: Final = (
    HEAD
    + """
local key = P .. 'session:' .. ARGV[2]
if call('HGET', key, 'claim') ~= ARGV[3] or call('HEXISTS', key, 'since') == 0 then return 0 end
return call('HSET', key, 'since', ARGV[4])
"""
)

# session, claim: who made it has delivered what was left to it
CAUGHT_UP: Final = (
    HEAD
    + """
local key = P .. 'session:' .. ARGV[2]
if call('HGET', key, 'claim') ~= ARGV[3] then return 0 end
return call('HDEL', key, 'since')
"""
)

# session, worker, how many fields are dropped, those fields, then field, value, …
CHANGE: Final = (
    HEAD
    + """
local key, drops = P .. 'session:' .. ARGV[2], tonumber(ARGV[4])
if call('EXISTS', key) == 0 then return 0 end
for at = 5, 4 + drops do call('HDEL', key, ARGV[at]) end
for at = 5 + drops, #ARGV, 2 do call('HSET', key, ARGV[at], ARGV[at + 1]) end
news('t', 'changed', 's', ARGV[2], 'w', ARGV[3])
return 1
"""
)

# session, worker, the last news that it was told: its owner leaves it to the next worker that serves it
RELEASE: Final = (
    HEAD
    + """
local key, worker = P .. 'session:' .. ARGV[2], ARGV[3]
if call('HGET', key, 'owner') ~= worker then return 0 end
call('HSET', key, 'owner', '')
call('HSETNX', key, 'since', ARGV[4])
call('HDEL', key, 'claim')
news('t', 'owner', 's', ARGV[2], 'w', '')
return 1
"""
)

# session, ttl → whether the session is there
TOUCH: Final = (
    HEAD
    + """
local id, key, ttl = ARGV[2], P .. 'session:' .. ARGV[2], ARGV[3]
if call('PEXPIRE', key, ttl) == 0 then return 0 end
for _, name in ipairs(call('HKEYS', P .. 'streams:' .. id)) do
  keep(P .. 'stream:' .. id .. ':' .. name, ttl)
  keep(P .. 'events:' .. id .. ':' .. name, ttl)
end
for _, each in ipairs({'streams:', 'ended:', 'questions:'}) do keep(P .. each .. id, ttl) end
local account = P .. 'account:' .. call('HGET', key, 'account')
call('ZADD', account, 'XX', now() + ttl, id)
keep(account, ttl)
return 1
"""
)

# session → whether there was one to end
END: Final = (
    HEAD
    + """
local id, key = ARGV[2], P .. 'session:' .. ARGV[2]
local account = call('HGET', key, 'account')
if not account then return 0 end
call('ZREM', P .. 'account:' .. account, id)
for _, name in ipairs(call('HKEYS', P .. 'streams:' .. id)) do
  call('DEL', P .. 'stream:' .. id .. ':' .. name, P .. 'events:' .. id .. ':' .. name)
end
call('DEL', key, P .. 'streams:' .. id, P .. 'ended:' .. id, P .. 'questions:' .. id)
news('t', 'ended', 's', id)
return 1
"""
)
