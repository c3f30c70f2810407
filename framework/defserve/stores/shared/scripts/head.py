"""What every script begins with: the prefix, arguments by name, leases, and the three ways to reach workers."""

from __future__ import annotations

from typing import Final, TypeAlias

Value: TypeAlias = str | bytes | int

# - `named(from)`: the arguments from there on, which are names and values
# - `mail(worker, …)`: for one worker. False if its mailbox is full: `lost` tells the worker so when it renews its lease
# - `news(…)`: for all workers, who may read it later. Gives its id
# - `signal(…)`: for the worker that knows what it is about; nobody reads it later
# Each entry has the field `b`: the bytes that were ever added. What waits is the difference of two of them.
HEAD: Final = """
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
