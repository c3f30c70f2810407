"""The Lua scripts: each one is a step that happens as a whole. All of them may be repeated.

ARGV[1] is the prefix of the keys. Under it:

- `session:ID`, a hash: the record of a session. `owner` is the worker that delivers news to it (those after `since`,
  when it began to, or `opened`), `delivered` the last news delivered
- `streams:ID`, a hash: its streams and how many bytes each holds; `ended:ID`, a sorted set: those that are over
- `stream:ID:NAME`, a hash: who runs, called and reads a stream; `events:ID:NAME`, a Redis stream: its events
- `questions:ID`, a hash: the open questions, each with its stream, its number there, and for whom it is
- `account:NAME`, a sorted set: the sessions of one caller, by the time at which they end
- `lease:WORKER`, `read:WORKER` (the last news it has read), `mail:WORKER`, `news`, `signals`, and for each of the last
  three `size:NAME`: how many bytes wait there
- `once:KEY`, a hash: who does something, and what came of it
- `rate:KEY`: when a bucket will be full again, in microseconds
- `table:NAME`, a hash that all workers have a copy of
"""

from __future__ import annotations

from typing import Final, TypeAlias

ScriptArgument: TypeAlias = str | bytes | int

# - `named(from)`: the arguments from there on, which are names and values
# - `mail(worker, …)`: for one worker. False if its mailbox is full: `lost` tells the worker so when it renews its lease
# - `news(…)`: for all workers, who may read it later. Gives its id
# - `signal(…)`: for the worker that knows what it is about; nobody reads it later
# Each entry has the field `b`: the bytes that were ever added. What waits is the difference of two of them.
LUA_PRELUDE: Final = """
local P, call = ARGV[1], redis.call
local MAIL = {count = 10000, bytes = 64 * 1024 * 1024, ttl = 3600000}
local NEWS = {count = 10000, bytes = 64 * 1024 * 1024, ttl = 604800000}
local SIGNALS = {count = 1000, bytes = 4 * 1024 * 1024, ttl = 3600000}

local function named(from)
  local found = {}
  for at = from, #ARGV, 2 do found[ARGV[at]] = ARGV[at + 1] end
  return found
end
local function now() local t = call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
local function alive(worker) return worker and worker ~= '' and call('EXISTS', P .. 'lease:' .. worker) == 1 end
local function keep(key, ttl) call('PEXPIRE', key, ttl) end

-- Three numbers: two of the news, and one for each message that delivers it.
local function is_later(one, other)
  local a, b = {}, {}
  for each in one:gmatch('%d+') do a[#a + 1] = tonumber(each) end
  for each in other:gmatch('%d+') do b[#b + 1] = tonumber(each) end
  for at = 1, 3 do
    local x, y = a[at] or 0, b[at] or 0
    if x ~= y then return x > y end
  end
  return false
end

local function size_of(fields)
  local size = 0
  for _, each in ipairs(fields) do size = size + #tostring(each) end
  return size
end
local function field_of(entry, name)
  for at = 1, #entry, 2 do if entry[at] == name then return entry[at + 1] end end
end
local function add(stream, limits, fields)
  local sizes = P .. 'size:' .. stream
  local added = call('HINCRBY', sizes, 'added', size_of(fields))
  local id = call('XADD', P .. stream, 'MAXLEN', '~', limits.count, '*', 'b', added, unpack(fields))
  keep(P .. stream, limits.ttl)
  keep(sizes, limits.ttl)
  return added, id
end
local function add_newest(stream, limits, fields)
  local added, id = add(stream, limits, fields)
  local first = call('XRANGE', P .. stream, '-', '+', 'COUNT', 1)[1]
  while first and added - tonumber(field_of(first[2], 'b') or added) > limits.bytes do
    call('XDEL', P .. stream, first[1])
    first = call('XRANGE', P .. stream, '-', '+', 'COUNT', 1)[1]
  end
  return id
end

local function mail(worker, ...)
  local stream, fields = 'mail:' .. worker, {...}
  local sizes = call('HMGET', P .. 'size:' .. stream, 'added', 'read')
  local waiting = tonumber(sizes[1] or 0) - tonumber(sizes[2] or 0)
  if waiting + size_of(fields) > MAIL.bytes or call('XLEN', P .. stream) >= MAIL.count then
    call('HSET', P .. 'size:' .. stream, 'lost', 1)
    keep(P .. 'size:' .. stream, MAIL.ttl)
    return false
  end
  add(stream, MAIL, fields)
  return true
end
local function news(...) return add_newest('news', NEWS, {...}) end
local function signal(...) add_newest('signals', SIGNALS, {...}) end
"""


# -- Sessions: their records, who owns them, and how many a caller has.


# session, worker, ttl, account, its limit or '', field, value, … → whether there was room
OPEN_SESSION: Final = (
    LUA_PRELUDE
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
LIST_ACCOUNT_SESSIONS: Final = LUA_PRELUDE + "return call('ZRANGEBYSCORE', P .. 'account:' .. ARGV[2], now(), '+inf')"

# session → the record, and whether its owner lives; or nothing
LOAD_SESSION: Final = (
    LUA_PRELUDE
    + """
local key = P .. 'session:' .. ARGV[2]
local record = call('HGETALL', key)
if #record == 0 then return false end
return {record, alive(call('HGET', key, 'owner')) and 1 or 0}
"""
)

# session, worker → the news after which this worker, as its new owner, must deliver, and the news that says that it is
# the owner, by which its claim is known; nothing if another one owns it, or if this one has delivered everything
CLAIM_SESSION: Final = (
    LUA_PRELUDE
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
MARK_DELIVERED: Final = (
    LUA_PRELUDE
    + """
local key = P .. 'session:' .. ARGV[2]
if call('HGET', key, 'claim') ~= ARGV[3] or call('HEXISTS', key, 'since') == 0 then return 0 end
return call('HSET', key, 'since', ARGV[4])
"""
)

# session, claim: who made it has delivered what was left to it
END_CATCH_UP: Final = (
    LUA_PRELUDE
    + """
local key = P .. 'session:' .. ARGV[2]
if call('HGET', key, 'claim') ~= ARGV[3] then return 0 end
return call('HDEL', key, 'since')
"""
)

# session, worker, how many fields are dropped, those fields, then field, value, …
CHANGE_SESSION: Final = (
    LUA_PRELUDE
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
RELEASE_SESSION: Final = (
    LUA_PRELUDE
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
TOUCH_SESSION: Final = (
    LUA_PRELUDE
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
END_SESSION: Final = (
    LUA_PRELUDE
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


# -- Event streams: who runs and reads them, and their events in order.


EVENT_ADDED, EVENT_REPEATED, OUT_OF_ORDER = b"added", b"repeated", b"out of order"
SESSION_OVER, NO_STREAM, STREAM_ENDED, STREAM_ALIVE = b"session over", b"no such stream", b"stream ended", b"alive"
"""What `APPEND_EVENT` answers first. Only `EVENT_ADDED` says that something has changed."""


def append_arguments(data: bytes, **fields: ScriptArgument) -> list[ScriptArgument]:
    """The arguments of `APPEND_EVENT`; empty ones are left out.

    `session`, `stream`, `ttl`, `kind`: `message`, `progress`, `request`, `result`, or `end` for a call without one.
    `producer` and `number`: who adds it, and how many it has added to this stream. `news`: the news that this delivers,
    instead of a number; with it `record` and `record_value`, a field of the session's record. `replaces`: which
    progress it replaces. `audience`: who may see it. `question` and `asker`: the id of a request, and for whom it is.
    `dead`: add it only if this worker is dead. `most_events`, `most_bytes` of a
    stream, `most_held` bytes of a session and `most_ended` streams are the bounds.
    """
    return [data, *(part for name, value in fields.items() if value != "" for part in (name, value))]


# session, name, worker, the id of its request, its caller, its reader, ttl
BEGIN_STREAM: Final = (
    LUA_PRELUDE
    + """
local id, name, ttl = ARGV[2], ARGV[3], ARGV[8]
if call('EXISTS', P .. 'session:' .. id) == 0 then return 0 end
local stream = P .. 'stream:' .. id .. ':' .. name
if call('EXISTS', stream) == 1 then return 1 end
call('HSET', stream, 'worker', ARGV[4], 'request', ARGV[5], 'caller', ARGV[6], 'reader', ARGV[7], 'last', 0)
call('HSET', P .. 'streams:' .. id, name, 0)
keep(stream, ttl)
keep(P .. 'streams:' .. id, ttl)
return 1
"""
)

_MAY_ADD: Final = """
local A, data = named(3), ARGV[2]
local id, name, producer, kind, ttl = A.session, A.stream, A.producer or '', A.kind, A.ttl
local session, stream = P .. 'session:' .. id, P .. 'stream:' .. id .. ':' .. name
local events, streams, ended = P .. 'events:' .. id .. ':' .. name, P .. 'streams:' .. id, P .. 'ended:' .. id
local number = tonumber(A.number)

-- Why it cannot be added; nil if it can. Notes its number, so that it is added once.
local function refusal()
  if call('EXISTS', session) == 0 then return 'session over' end
  if name ~= 's' and call('EXISTS', stream) == 0 then return 'no such stream' end
  if A.dead and alive(A.dead) then return 'alive' end
  local before = tonumber(call('HGET', stream, 'n:' .. producer) or 0)
  if number and number <= before then return 'repeated' end
  if call('HEXISTS', stream, 'done') == 1 then return 'stream ended' end
  if number and number > before + 1 then return 'out of order' end
  if A.news and not is_later(A.news, call('HGET', session, 'delivered') or '0-0') then return 'repeated' end
  if number then call('HSET', stream, 'n:' .. producer, number) end
  if A.news then call('HSET', session, 'delivered', A.news) end
  if A.record then call('HSET', session, A.record, A.record_value) end
end
"""

_ADD: Final = """
local function held(more)
  call('HINCRBY', streams, name, more)
  call('HINCRBY', streams, '', more)
end
local function drop(place, entry)
  local length = #(field_of(entry, 'd') or '')
  call('XDEL', events, place)
  call('HINCRBY', stream, 'count', -1)
  call('HINCRBY', stream, 'bytes', 0 - length)
  held(0 - length)
end

-- Of the progress of a call only the newest is kept.
local function replace(seq)
  local old = call('HGET', stream, 'p:' .. A.replaces)
  local found = old and call('XRANGE', events, old .. '-0', old .. '-0')[1]
  if found then drop(found[1], found[2]) end
  call('HSET', stream, 'p:' .. A.replaces, seq)
end

-- Results and open questions are not counted, and not dropped.
local function count(seq)
  if kind == 'request' and A.question then
    call('HSET', P .. 'questions:' .. id, A.question, name .. '\\n' .. seq .. '\\n' .. (A.asker or ''))
    call('HSET', stream, 'q:' .. seq, 1)
    keep(P .. 'questions:' .. id, ttl)
  elseif kind ~= 'result' then
    call('HINCRBY', stream, 'count', 1)
    call('HINCRBY', stream, 'bytes', #data)
  end
end

-- The newest event stays, however large: nobody has read it.
local function trim(newest)
  local most, bytes, from = tonumber(A.most_events or 256), tonumber(A.most_bytes or 1048576), '-'
  while tonumber(call('HGET', stream, 'count') or 0) > most or tonumber(call('HGET', stream, 'bytes') or 0) > bytes do
    local page = call('XRANGE', events, from, '+', 'COUNT', 16)
    if #page == 0 then return end
    for _, each in ipairs(page) do
      from = '(' .. each[1]
      local is_open = call('HEXISTS', stream, 'q:' .. each[1]:match('%d+')) == 1
      if each[1] ~= newest and field_of(each[2], 'k') ~= 'result' and not is_open then
        drop(each[1], each[2])
        break
      end
    end
  end
end

local function add_event(seq)
  call('HSET', stream, 'last', seq)
  if kind == 'progress' and A.replaces then replace(seq) end
  call('XADD', events, seq .. '-0', 'k', kind, 'a', A.audience or '', 'd', data)
  held(#data)
  count(seq)
  trim(seq .. '-0')
end
"""

_FORGET: Final = """
local function forget(other)
  local length = tonumber(call('HGET', streams, other) or 0)
  call('DEL', P .. 'stream:' .. id .. ':' .. other, P .. 'events:' .. id .. ':' .. other)
  call('HDEL', streams, other)
  call('ZREM', ended, other)
  call('HINCRBY', streams, '', 0 - length)  -- never -0, which is no integer for Redis
end

-- The oldest stream that is over, or else one that is not; never this one, nor the session's own.
local function least_needed()
  for _, each in ipairs(call('ZRANGE', ended, 0, 1)) do if each ~= name then return each end end
  for _, each in ipairs(call('HKEYS', streams)) do
    if each ~= '' and each ~= 's' and each ~= name then return each end
  end
end

local function make_room()
  while call('ZCARD', ended) > tonumber(A.most_ended or 256) do forget(call('ZRANGE', ended, 0, 0)[1]) end
  while tonumber(call('HGET', streams, '') or 0) > tonumber(A.most_held or 16777216) do
    local other = least_needed()
    if not other then return end
    forget(other)
  end
end
"""

# See `append_arguments` → 'added', the event's number, the last one before it, who reads; or why it was not added
APPEND_EVENT: Final = (
    LUA_PRELUDE
    + _MAY_ADD
    + _ADD
    + _FORGET
    + """
local reason = refusal()
if reason == 'out of order' then return {reason, id, name, producer, number} end
if reason then return {reason} end
local before = tonumber(call('HGET', stream, 'last') or 0)
local seq = before
if kind ~= 'end' then
  seq = before + 1
  add_event(seq)
end
if kind == 'result' or kind == 'end' then
  call('HSET', stream, 'done', 1)
  call('ZADD', ended, now(), name)
end
make_room()
for _, key in ipairs({stream, events, streams, ended}) do keep(key, ttl) end
local reader = call('HGET', stream, 'reader') or ''
local theirs = reader:match('^(%w+)/')
if theirs and theirs ~= producer:match('^%w*') and alive(theirs) then
  mail(theirs, 't', 'event', 's', id, 'n', name, 'q', seq)
end
return {'added', seq, before, reader}
"""
)

# session, name, producer, its number: what it has sent before that number is lost, and not given again
SKIP_EVENTS: Final = (
    LUA_PRELUDE
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

# session, name → [worker, request, caller, done, last, reader, rights, read, skipped], is its worker alive, its reader
LOOK_UP_STREAM: Final = (
    LUA_PRELUDE
    + """
local stream = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
local found = call('HMGET', stream,
  'worker', 'request', 'caller', 'done', 'last', 'reader', 'rights', 'read', 'skipped')
if not found[5] then return false end
local theirs = (found[6] or ''):match('^(%w+)/')
return {found, alive(found[1]) and 1 or 0, alive(theirs) and 1 or 0}
"""
)

# session, name, the reader before, the new one, its rights, ttl; what it has read, and what it left → whether it reads
ATTACH_READER: Final = (
    LUA_PRELUDE
    + """
local id, name, before, reader, ttl = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7]
local stream = P .. 'stream:' .. id .. ':' .. name
if call('EXISTS', P .. 'session:' .. id) == 0 then return 0 end
local current = call('HGET', stream, 'reader') or ''
if current == reader then return 1 end
if current ~= before then return 0 end
call('HSET', stream, 'reader', reader, 'rights', ARGV[6])
if ARGV[8] then call('HSET', stream, 'read', ARGV[8], 'skipped', ARGV[9]) end
call('HSETNX', stream, 'last', 0)
call('HSETNX', P .. 'streams:' .. id, name, 0)
keep(stream, ttl)
keep(P .. 'streams:' .. id, ttl)
local theirs = current:match('^(%w+)/')
if alive(theirs) then mail(theirs, 't', 'replaced', 's', id, 'n', name, 'r', current) end
return 1
"""
)

# session, name, after, how many → events, the last number, whether there is a result; or nothing
FETCH_EVENTS: Final = (
    LUA_PRELUDE
    + """
local key = ARGV[2] .. ':' .. ARGV[3]
local found = call('HMGET', P .. 'stream:' .. key, 'last', 'done')
if not found[1] then return false end
return {call('XRANGE', P .. 'events:' .. key, '(' .. ARGV[4] .. '-0', '+', 'COUNT', ARGV[5]), found[1], found[2] or ''}
"""
)

# session, name, reader, what it has read, what it left for others, whether it reads on
MARK_READ: Final = (
    LUA_PRELUDE
    + """
local stream = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
if call('HGET', stream, 'reader') ~= ARGV[4] then return 0 end
call('HSET', stream, 'read', ARGV[5], 'skipped', ARGV[6])
if ARGV[7] == '' then call('HDEL', stream, 'reader', 'rights') end
return 1
"""
)


# -- Questions to a client: whoever brings the answer takes the question out, once.


# session, question → the record of an open question
FIND_QUESTION: Final = LUA_PRELUDE + "return call('HGET', P .. 'questions:' .. ARGV[2], ARGV[3])"

# A question that nobody waits for may be dropped like any message.
_SETTLE: Final = """
local function settle(id, question)
  local found = call('HGET', P .. 'questions:' .. id, question)
  if not found then return false end
  call('HDEL', P .. 'questions:' .. id, question)
  local name, number = found:match('^(.-)\\n(%d+)\\n')
  local stream, place = P .. 'stream:' .. id .. ':' .. name, number .. '-0'
  local entry = call('XRANGE', P .. 'events:' .. id .. ':' .. name, place, place)[1]
  if call('HDEL', stream, 'q:' .. number) == 1 and entry then
    call('HINCRBY', stream, 'count', 1)
    call('HINCRBY', stream, 'bytes', #(field_of(entry[2], 'd') or ''))
  end
  return true
end
"""

MAILBOX_FULL: Final = -1

# session, question, the worker that asks, the answer, who gives it → 1; 0: it is not open; FULL: so is the mailbox of
# the worker that asks, and the question stays open
ANSWER_QUESTION: Final = (
    LUA_PRELUDE
    + _SETTLE
    + """
local id, question, worker = ARGV[2], ARGV[3], ARGV[4]
if call('HEXISTS', P .. 'questions:' .. id, question) == 0 then return 0 end
if not mail(worker, 't', 'answer', 's', id, 'd', ARGV[5], 'p', ARGV[6]) then return -1 end
settle(id, question)
return 1
"""
)

# session, question, the worker that asks, field, value, …: as `ANSWER_QUESTION`, with mail of another kind
NOTIFY_ASKER: Final = (
    LUA_PRELUDE
    + _SETTLE
    + """
local id, question, worker = ARGV[2], ARGV[3], ARGV[4]
if not alive(worker) or call('HEXISTS', P .. 'questions:' .. id, question) == 0 then return 0 end
if not mail(worker, unpack(ARGV, 5)) then return -1 end
settle(id, question)
return 1
"""
)

# session, question: nobody waits for its answer any more
RELEASE_QUESTION: Final = LUA_PRELUDE + _SETTLE + "return settle(ARGV[2], ARGV[3]) and 1 or 0"


# -- Workers: their leases, and what they send one another.


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
PUBLISH_UPDATE: Final = (
    LUA_PRELUDE
    + _ONCE
    + """
if is_new(ARGV[2], ARGV[3]) then return news(unpack(ARGV, 4)) end
return call('XREVRANGE', P .. 'news', '+', '-', 'COUNT', 1)[1][1]
"""
)

# field, value, …: something for the worker that knows what it is about; nobody receives it later
SEND_SIGNAL: Final = LUA_PRELUDE + "signal(unpack(ARGV, 2)) return 1"

# writer, number or '', worker, field, value, …: something for one worker → 1; 0: it does not live; FULL: so is its
# mailbox. Clients choose the worker: one that does not live gets no mailbox.
SEND_MAIL: Final = (
    LUA_PRELUDE
    + _ONCE
    + """
if not alive(ARGV[4]) then return 0 end
return (not is_new(ARGV[2], ARGV[3]) or mail(ARGV[4], unpack(ARGV, 5))) and 1 or -1
"""
)

# worker, ttl of its lease, the last news and the last mail it has read → whether it had a lease, and got all its mail.
# If that mail is not there, the mailbox is a new one, whose ids may be lower: none of it was read.
RENEW_LEASE: Final = (
    LUA_PRELUDE
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
FIND_LIVE_WORKERS: Final = (
    LUA_PRELUDE
    + """
local found = {}
for at = 2, #ARGV do found[at - 1] = alive(ARGV[at]) and 1 or 0 end
return found
"""
)

# worker, the last news it has read: it ends
END_WORKER: Final = (
    LUA_PRELUDE
    + """
local worker = ARGV[2]
call('SET', P .. 'read:' .. worker, ARGV[3], 'PX', 604800000)
call('DEL', P .. 'lease:' .. worker, P .. 'mail:' .. worker, P .. 'size:mail:' .. worker)
return 1
"""
)
