"""The Lua scripts: each one is a step that happens as a whole. All of them may be repeated.

ARGV[1] is the prefix of the keys. Under it:

- `session:ID`, a hash: the record of a session. `home` is the worker that tells it news (those after
  `since`, when it began to), `told` the last news told
- `streams:ID`, a hash: its streams and how many bytes each holds; `ended:ID`, a sorted set: those that are over
- `stream:ID:NAME`, a hash: who runs, owns and reads a stream; `events:ID:NAME`, a Redis stream: its events
- `questions:ID`, a hash: the open questions, each with its stream, its number there, and for whom it is
- `account:NAME`, a sorted set: the sessions of one caller, by the time at which they end
- `lease:WORKER`, `read:WORKER` (the last news it has read), `mail:WORKER`, `news`, `signals`
"""

from __future__ import annotations

from typing import Final

_HEAD: Final = """
local P, call = ARGV[1], redis.call
local function now() local t = call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
local function alive(worker) return worker and worker ~= '' and call('EXISTS', P .. 'lease:' .. worker) == 1 end
local function mail(worker, ...)
  local box = P .. 'mail:' .. worker
  call('XADD', box, 'MAXLEN', '~', 10000, '*', ...)
  call('PEXPIRE', box, 3600000)
end
local function news(...)
  call('XADD', P .. 'news', 'MAXLEN', '~', 10000, '*', ...)
  call('PEXPIRE', P .. 'news', 604800000)
end
local function keep(key, ttl) call('PEXPIRE', key, ttl) end
"""

# sid, worker, ttl, account, its limit or '', field, value, …
OPEN: Final = (
    _HEAD
    + """
local key, account, time = P .. 'session:' .. ARGV[2], P .. 'account:' .. ARGV[5], now()
if call('EXISTS', key) == 1 then return 1 end
call('ZREMRANGEBYSCORE', account, '-inf', time)
if ARGV[6] ~= '' and call('ZCARD', account) >= tonumber(ARGV[6]) then return 0 end
call('ZADD', account, time + ARGV[4], ARGV[2])
keep(account, ARGV[4])
local last = call('XREVRANGE', P .. 'news', '+', '-', 'COUNT', 1)
call('HSET', key, 'home', ARGV[3], 'account', ARGV[5], 'told', last[1] and last[1][1] or '0-0')
for at = 7, #ARGV, 2 do call('HSET', key, ARGV[at], ARGV[at + 1]) end
keep(key, ARGV[4])
return 1
"""
)

# sid → the record, and whether its home lives; or nothing
LOAD: Final = (
    _HEAD
    + """
local key = P .. 'session:' .. ARGV[2]
local record = call('HGETALL', key)
if #record == 0 then return false end
return {record, alive(call('HGET', key, 'home')) and 1 or 0}
"""
)

# sid, worker → the news after which this worker, as its new home, must tell it; '' if it has had one before it
CLAIM: Final = (
    _HEAD
    + """
local key = P .. 'session:' .. ARGV[2]
if call('EXISTS', key) == 0 then return '' end
local home = call('HGET', key, 'home')
if home == ARGV[3] then return call('HGET', key, 'since') or '' end
if alive(home) then return '' end
local since = home and home ~= '' and call('GET', P .. 'read:' .. home) or call('HGET', key, 'told') or '0-0'
call('HSET', key, 'home', ARGV[3], 'since', since)
news('t', 'home', 's', ARGV[2], 'w', ARGV[3])
return since
"""
)

# sid, worker, how many fields are dropped, those fields, then field, value, …
CHANGE: Final = (
    _HEAD
    + """
local key, drops = P .. 'session:' .. ARGV[2], tonumber(ARGV[4])
if call('EXISTS', key) == 0 then return 0 end
for at = 5, 4 + drops do call('HDEL', key, ARGV[at]) end
for at = 5 + drops, #ARGV, 2 do call('HSET', key, ARGV[at], ARGV[at + 1]) end
news('t', 'changed', 's', ARGV[2], 'w', ARGV[3])
return 1
"""
)

# sid, ttl → whether the session is there
TOUCH: Final = (
    _HEAD
    + """
local sid, key = ARGV[2], P .. 'session:' .. ARGV[2]
if call('PEXPIRE', key, ARGV[3]) == 0 then return 0 end
for _, name in ipairs(call('HKEYS', P .. 'streams:' .. sid)) do
  keep(P .. 'stream:' .. sid .. ':' .. name, ARGV[3])
  keep(P .. 'events:' .. sid .. ':' .. name, ARGV[3])
end
for _, each in ipairs({'streams:', 'ended:', 'questions:'}) do keep(P .. each .. sid, ARGV[3]) end
local account = P .. 'account:' .. call('HGET', key, 'account')
call('ZADD', account, 'XX', now() + ARGV[3], sid)
keep(account, ARGV[3])
return 1
"""
)

# sid → whether there was one to end
END: Final = (
    _HEAD
    + """
local sid, key = ARGV[2], P .. 'session:' .. ARGV[2]
local account = call('HGET', key, 'account')
if not account then return 0 end
call('ZREM', P .. 'account:' .. account, sid)
for _, name in ipairs(call('HKEYS', P .. 'streams:' .. sid)) do
  call('DEL', P .. 'stream:' .. sid .. ':' .. name, P .. 'events:' .. sid .. ':' .. name)
end
call('DEL', key, P .. 'streams:' .. sid, P .. 'ended:' .. sid, P .. 'questions:' .. sid)
news('t', 'ended', 's', sid)
return 1
"""
)

# sid, name, worker, the id of its request, its owner, its reader, ttl
BEGIN: Final = (
    _HEAD
    + """
local sid, name = ARGV[2], ARGV[3]
if call('EXISTS', P .. 'session:' .. sid) == 0 then return 0 end
local stream = P .. 'stream:' .. sid .. ':' .. name
if call('EXISTS', stream) == 1 then return 1 end
call('HSET', stream, 'worker', ARGV[4], 'request', ARGV[5], 'owner', ARGV[6], 'reader', ARGV[7], 'last', 0)
call('HSET', P .. 'streams:' .. sid, name, 0)
keep(stream, ARGV[8])
keep(P .. 'streams:' .. sid, ARGV[8])
return 1
"""
)

# sid, name, producer, its number or '', kind, key, audience, data, question, asker, ttl, news or '', dead worker or '',
# most events of a stream, most bytes of them, most bytes of a session, most streams that are over
# → the event's number, the last one before it, who reads; or a reason (see `appending`)
APPEND: Final = (
    _HEAD
    + """
local sid, name, producer, number, kind = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local session, stream = P .. 'session:' .. sid, P .. 'stream:' .. sid .. ':' .. name
local events, streams, ended = P .. 'events:' .. sid .. ':' .. name, P .. 'streams:' .. sid, P .. 'ended:' .. sid
local data, ttl = ARGV[9], ARGV[12]
if call('EXISTS', session) == 0 then return {-1} end
if name ~= 's' and call('EXISTS', stream) == 0 then return {-4} end
if ARGV[14] ~= '' and alive(ARGV[14]) then return {-3} end
if number then
  local before = tonumber(call('HGET', stream, 'n:' .. producer) or 0)
  if number <= before then return {0} end
  if call('HEXISTS', stream, 'done') == 1 then return {-2} end
  if number > before + 1 then return {-5} end
  call('HSET', stream, 'n:' .. producer, number)
elseif call('HEXISTS', stream, 'done') == 1 then return {-2} end
if ARGV[13] ~= '' then
  local told, new = call('HGET', session, 'told'), ARGV[13]
  local a, b = told:match('(%d+)-(%d+)')
  local c, d = new:match('(%d+)-(%d+)')
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  if c < a or (c == a and d <= b) then return {0} end
  call('HSET', session, 'told', new)
end
local before = tonumber(call('HGET', stream, 'last') or 0)
local seq, size = before, #data
local function held(more)
  call('HINCRBY', streams, name, more)
  return call('HINCRBY', streams, '', more)
end
local function drop(place, entry)
  local length = 0
  for at = 1, #entry, 2 do if entry[at] == 'd' then length = #entry[at + 1] end end
  call('XDEL', events, place)
  call('HINCRBY', stream, 'count', -1)
  call('HINCRBY', stream, 'bytes', 0 - length)
  held(0 - length)
end
if kind ~= 'end' then
  seq = before + 1
  call('HSET', stream, 'last', seq)
  if kind == 'progress' and ARGV[7] ~= '' then
    local old = call('HGET', stream, 'p:' .. ARGV[7])
    local found = old and call('XRANGE', events, old .. '-0', old .. '-0') or {}
    if found[1] then drop(found[1][1], found[1][2]) end
    call('HSET', stream, 'p:' .. ARGV[7], seq)
  end
  call('XADD', events, seq .. '-0', 'k', kind, 'a', ARGV[8], 'd', data)
  local total = held(size)
  if kind == 'request' and ARGV[10] ~= '' then
    call('HSET', P .. 'questions:' .. sid, ARGV[10], name .. '\\n' .. seq .. '\\n' .. ARGV[11])
    call('HSET', stream, 'q:' .. seq, 1)
    keep(P .. 'questions:' .. sid, ttl)
  elseif kind ~= 'result' then
    call('HINCRBY', stream, 'count', 1)
    call('HINCRBY', stream, 'bytes', size)
  end
  local from = '-'
  while tonumber(call('HGET', stream, 'count') or 0) > tonumber(ARGV[15])
      or tonumber(call('HGET', stream, 'bytes') or 0) > tonumber(ARGV[16]) do
    local page = call('XRANGE', events, from, '+', 'COUNT', 16)
    if #page == 0 then break end
    for _, each in ipairs(page) do
      local place = each[1]:match('%d+')
      from = '(' .. each[1]
      local is_kept = each[2][2] == 'result' or call('HEXISTS', stream, 'q:' .. place) == 1
      if not is_kept then
        drop(each[1], each[2])
        break
      end
    end
  end
end
local function forget(other)
  local length = tonumber(call('HGET', streams, other) or 0)
  call('DEL', P .. 'stream:' .. sid .. ':' .. other, P .. 'events:' .. sid .. ':' .. other)
  call('HDEL', streams, other)
  call('ZREM', ended, other)
  call('HINCRBY', streams, '', 0 - length)  -- never -0, which is no integer for Redis
end
if kind == 'result' or kind == 'end' then
  call('HSET', stream, 'done', 1)
  call('ZADD', ended, now(), name)
end
while call('ZCARD', ended) > tonumber(ARGV[18]) do forget(call('ZRANGE', ended, 0, 0)[1]) end
while tonumber(call('HGET', streams, '') or 0) > tonumber(ARGV[17]) do
  local oldest = call('ZRANGE', ended, 0, 1)
  local other = oldest[1] ~= name and oldest[1] or oldest[2]
  if not other then
    for _, each in ipairs(call('HKEYS', streams)) do
      if each ~= '' and each ~= 's' and each ~= name then other = each break end
    end
  end
  if not other then break end
  forget(other)
end
for _, key in ipairs({stream, events, streams, ended}) do keep(key, ttl) end
local reader = call('HGET', stream, 'reader') or ''
local theirs = reader:match('^(%w+)/')
if theirs and theirs ~= producer:match('^%w*') and alive(theirs) then
  mail(theirs, 't', 'event', 's', sid, 'n', name, 'q', seq)
end
return {seq, before, reader}
"""
)

# sid, name, producer, its number: what it has sent before that number is lost, and not given again
SKIP: Final = (
    _HEAD
    + """
local stream, field = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3], 'n:' .. ARGV[4]
if call('EXISTS', P .. 'session:' .. ARGV[2]) == 0 or call('HEXISTS', stream, 'done') == 1 then return 0 end
local missing = tonumber(ARGV[5]) - 1 - tonumber(call('HGET', stream, field) or 0)
if missing <= 0 then return 0 end
call('HINCRBY', stream, field, missing)
call('HINCRBY', stream, 'last', missing)
return 1
"""
)

# sid, name → [worker, request, owner, done, last, reader, rights, read, skipped], is its worker alive, its reader
LOOK: Final = (
    _HEAD
    + """
local stream = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
local found = call('HMGET', stream,
  'worker', 'request', 'owner', 'done', 'last', 'reader', 'rights', 'read', 'skipped')
if not found[5] then return false end
local theirs = (found[6] or ''):match('^(%w+)/')
return {found, alive(found[1]) and 1 or 0, alive(theirs) and 1 or 0}
"""
)

# sid, name, the reader before, the new one, its rights, ttl → whether it reads now
ATTACH: Final = (
    _HEAD
    + """
local sid, name, stream = ARGV[2], ARGV[3], P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
if call('EXISTS', P .. 'session:' .. sid) == 0 then return 0 end
local reader = call('HGET', stream, 'reader') or ''
if reader == ARGV[5] then return 1 end
if reader ~= ARGV[4] then return 0 end
call('HSET', stream, 'reader', ARGV[5], 'rights', ARGV[6])
call('HSETNX', stream, 'last', 0)
call('HSETNX', P .. 'streams:' .. sid, name, 0)
keep(stream, ARGV[7])
keep(P .. 'streams:' .. sid, ARGV[7])
local theirs = reader:match('^(%w+)/')
if alive(theirs) then mail(theirs, 't', 'replaced', 's', sid, 'n', name, 'r', reader) end
return 1
"""
)

# sid, name, after, how many → events, the last number, whether there is a result; or nothing
FETCH: Final = (
    _HEAD
    + """
local key = ARGV[2] .. ':' .. ARGV[3]
local found = call('HMGET', P .. 'stream:' .. key, 'last', 'done')
if not found[1] then return false end
return {call('XRANGE', P .. 'events:' .. key, '(' .. ARGV[4] .. '-0', '+', 'COUNT', ARGV[5]), found[1], found[2] or ''}
"""
)

# sid, name, reader, what it has read, what it left for others, whether it reads on
READ: Final = (
    _HEAD
    + """
local stream = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
if call('HGET', stream, 'reader') ~= ARGV[4] then return 0 end
call('HSET', stream, 'read', ARGV[5], 'skipped', ARGV[6])
if ARGV[7] == '' then call('HDEL', stream, 'reader', 'rights') end
return 1
"""
)

# sid, question → the record of an open question
QUESTION: Final = _HEAD + "return call('HGET', P .. 'questions:' .. ARGV[2], ARGV[3])"

# A question that nobody waits for may be dropped like any message.
_SETTLE: Final = """
local function settle(sid, question)
  local found = call('HGET', P .. 'questions:' .. sid, question)
  if not found then return false end
  call('HDEL', P .. 'questions:' .. sid, question)
  local name, seq = found:match('^(.-)\\n(%d+)\\n')
  local stream = P .. 'stream:' .. sid .. ':' .. name
  local entry = call('XRANGE', P .. 'events:' .. sid .. ':' .. name, seq .. '-0', seq .. '-0')[1]
  if call('HDEL', stream, 'q:' .. seq) == 1 and entry then
    call('HINCRBY', stream, 'count', 1)
    for at = 1, #entry[2], 2 do
      if entry[2][at] == 'd' then call('HINCRBY', stream, 'bytes', #entry[2][at + 1]) end
    end
  end
  return true
end
"""

# sid, question, the worker that asks, the answer, who gives it → whether it was open
ANSWER: Final = (
    _HEAD
    + _SETTLE
    + """
if not settle(ARGV[2], ARGV[3]) then return 0 end
mail(ARGV[4], 't', 'answer', 's', ARGV[2], 'd', ARGV[5], 'p', ARGV[6])
return 1
"""
)

# sid, question: nobody waits for its answer any more
RELEASE: Final = _HEAD + _SETTLE + "return settle(ARGV[2], ARGV[3]) and 1 or 0"

# field, value, …: something that every worker should hear
TELL: Final = _HEAD + "news(unpack(ARGV, 2)) return 1"

# field, value, …: something for the worker that knows what it is about; nobody hears it later
SIGNAL: Final = (
    _HEAD
    + """
call('XADD', P .. 'signals', 'MAXLEN', '~', 1000, '*', unpack(ARGV, 2))
call('PEXPIRE', P .. 'signals', 3600000)
return 1
"""
)

# worker, ttl of its lease, the last news and the last mail it has read → whether it had a lease
BEAT: Final = (
    _HEAD
    + """
local had = call('EXISTS', P .. 'lease:' .. ARGV[2])
call('SET', P .. 'lease:' .. ARGV[2], 1, 'PX', ARGV[3])
call('SET', P .. 'read:' .. ARGV[2], ARGV[4], 'PX', 604800000)
call('XTRIM', P .. 'mail:' .. ARGV[2], 'MINID', '=', ARGV[5])
return had
"""
)

# worker, the last news it has read: it ends
LEAVE: Final = (
    _HEAD
    + """
call('SET', P .. 'read:' .. ARGV[2], ARGV[3], 'PX', 604800000)
call('DEL', P .. 'lease:' .. ARGV[2], P .. 'mail:' .. ARGV[2])
return 1
"""
)
