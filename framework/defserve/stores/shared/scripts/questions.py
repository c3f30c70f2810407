"""Questions to a client: whoever brings the answer takes the question out, once."""

from __future__ import annotations

from typing import Final

from defserve.stores.shared.scripts.head import HEAD

# session, question → the record of an open question
QUESTION: Final = HEAD + "return call('HGET', P .. 'questions:' .. ARGV[2], ARGV[3])"

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

FULL: Final = -1
# session, question, the worker that asks, the answer, who gives it → 1; 0: it is not open; FULL: so is the mailbox of
# the worker that asks, and the question stays open
ANSWER: Final = (
    HEAD
    + _SETTLE
    + """
local id, question, worker = ARGV[2], ARGV[3], ARGV[4]
if call('HEXISTS', P .. 'questions:' .. id, question) == 0 then return 0 end
if not mail(worker, 't', 'answer', 's', id, 'd', ARGV[5], 'p', ARGV[6]) then return -1 end
settle(id, question)
return 1
"""
)

# session, question, the worker that asks, field, value, …: as `ANSWER`, with mail of another kind
TELL: Final = (
    HEAD
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
RELEASE: Final = HEAD + _SETTLE + "return settle(ARGV[2], ARGV[3]) and 1 or 0"
