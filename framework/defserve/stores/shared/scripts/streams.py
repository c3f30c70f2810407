"""Event streams: who runs and reads them, and their events in order."""

from __future__ import annotations

from typing import Final

from defserve.stores.shared.scripts.head import HEAD, Value

ADDED, REPEATED, OUT_OF_ORDER = b"added", b"repeated", b"out of order"
OVER, UNKNOWN, ENDED, ALIVE = b"session over", b"no such stream", b"stream ended", b"alive"
"""What `APPEND` answers first. Only what is `ADDED` changes anything."""


def appending(data: bytes, **fields: Value) -> list[Value]:
    """The arguments of `APPEND`; empty ones are left out.

    `session`, `stream`, `ttl`, `kind`: `message`, `progress`, `request`, `result`, or `end` for a call without one.
    `producer` and `number`: who adds it, and how many it has added to this stream. `news`: the news that this delivers,
    instead of a number; with it `record` and `record_value`, a field of the session's record. `replaces`: which
    progress it replaces. `audience`: who may see it. `question` and `asker`: the id of a request, and for whom it is.
    `dead`: add it only if this worker is dead. `most_events`, `most_bytes` of a
    stream, `most_held` bytes of a session and `most_ended` streams are the bounds.
    """
    return [data, *(part for name, value in fields.items() if value != "" for part in (name, value))]


# session, name, worker, the id of its request, its caller, its reader, ttl
BEGIN: Final = (
    HEAD
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

# See `appending` → 'added', the event's number, the last one before it, who reads; or why it was not added
APPEND: Final = (
    HEAD
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
SKIP: Final = (
    HEAD
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
LOOK: Final = (
    HEAD
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
ATTACH: Final = (
    HEAD
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
FETCH: Final = (
    HEAD
    + """
local key = ARGV[2] .. ':' .. ARGV[3]
local found = call('HMGET', P .. 'stream:' .. key, 'last', 'done')
if not found[1] then return false end
return {call('XRANGE', P .. 'events:' .. key, '(' .. ARGV[4] .. '-0', '+', 'COUNT', ARGV[5]), found[1], found[2] or ''}
"""
)

# session, name, reader, what it has read, what it left for others, whether it reads on
READ: Final = (
    HEAD
    + """
local stream = P .. 'stream:' .. ARGV[2] .. ':' .. ARGV[3]
if call('HGET', stream, 'reader') ~= ARGV[4] then return 0 end
call('HSET', stream, 'read', ARGV[5], 'skipped', ARGV[6])
if ARGV[7] == '' then call('HDEL', stream, 'reader', 'rights') end
return 1
"""
)
