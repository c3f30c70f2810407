"""Words that people use for what tools do, and the words that tools use for it.

Each line is a group: whoever says one of its words may mean a tool that says another. Groups are wide on purpose, and a
synonym counts less than the word itself. The words are those of offices, developers, data and the web.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from defserve.search.words import split, stem

# `notes.txt`, `*.log`; and `example.org`, which is no file.
_ENDING = re.compile(r"[\w*-]\.([A-Za-z][A-Za-z0-9]{1,4})\b")
# A ticket's key, a channel, somebody's address.
_PATTERNS = (
    (re.compile(r"\b[A-Z]{2,10}-\d+\b"), "issu"),
    (re.compile(r"(?<!\w)#[a-z]"), "channel"),
    (re.compile(r"\w@\w+\.\w"), "mail"),
)
_DATA = re.compile(r"\b[A-Z]{2,10}-\d+\b|\S+@\S+|\b[\d.,:]*\d\b")
_DOMAINS = frozenset("com org net io dev app edu gov info".split())
_QUOTED = re.compile(r"[\"“”„«»][^\"“”„«»]{1,200}[\"“”„«»]")

_GROUPS = """
create make new add build generate compose draft insert register setup begin start write produce manage post
delete remove erase drop destroy discard forget clear wipe purge trash rid cancel unlink detach manage
update change edit modify alter set adjust revise rewrite replace patch amend fix correct manage adapt tweak
get read show fetch retrieve view see look display open load print check tell pull inspect examine
list show browse enumerate overview every available existing
search find look locate lookup query seek where hunt discover filter
send post mail notify deliver message tell write email text dispatch
save write store keep put persist record
move transfer relocate shift drag migrate reorder
copy duplicate clone fork replicate
rename title name call
run execute start launch evaluate trigger invoke perform
stop end kill terminate close abort halt quit finish shut
wait hold pause until stay
merge combine join fold integrate unite
compare differ difference diff change versus between
undo revert reset rollback restore back recover
reply answer respond response
comment note remark feedback annotate annotation discussion
react reaction emoji thumbs like
approve review accept confirm sign
assign assignee owner responsible delegate
share permission access invite grant restrict restriction allow public visible
download save export fetch
upload attach attachment import
attachment file picture document enclosed
count many number tally amount how
total sum plus add aggregate
average mean statistics stats aggregate compute calculate
group aggregate summarize breakdown
link connect relate associate association relation tie
follow watch watcher subscribe observe
book schedule plan reserve arrange
sort order rank
convert translate transform turn
archive hide
publish release deploy
format style bold color colour highlight font
file document doc text
folder directory dir
tree hierarchy structure outline nested
disk computer laptop machine local filesystem drive desktop pc
cloud drive online
repo repository project codebase
issue bug ticket defect problem task story incident request
commit revision checkin changeset
branch line trunk main
pull request patch merge
ci build status check pipeline green
picture image photo png jpg jpeg graphic icon logo screenshot
screenshot capture snapshot picture screen
page site website web webpage url
url link address
tab page window
form questionnaire survey field input
response answer submission reply
click press tap push hit
hover pointer mouse cursor
type enter key keyboard
drag pull slide slider drop
scroll wheel
go visit navigate open browse
chat slack message thread space conversation
channel room group space
mail email gmail inbox letter message
calendar event meeting appointment agenda date call
free busy availability available slot
vacation holiday away absent leave office
focus concentrate undisturbed quiet
contact person people phone address
customer company client crm account organization contact object
deal sale opportunity lead object
engagement call meeting note activity
property attribute field column
workflow automation sequence
spreadsheet sheet excel workbook
cell value range number
slide presentation deck powerpoint
paragraph text section
header footer
table collection
base database
row record entry document item line
column field attribute
database db sql nosql mongodb sqlite mongo data
query select statement sql
index speed lookup
schema structure layout describe columns
cache redis key entry
expire ttl vanish lifetime expiry expiration
queue list backlog
pod container
deployment release rollout version
kubernetes k8s kubectl cluster helm
node worker server host
scale replica instance more
restart reboot rollout
log output history print
memory remember recall knowledge graph entity observation know fact
place restaurant cafe shop store location hotel nearby
geocode coordinate latitude longitude address position
direction route drive travel walk way bus
distance far long kilometer mile
elevation height altitude
time clock hour timezone zone date
internet web online news google research
crawl scrape extract content site
map sitemap
sprint iteration
worklog hour spent effort booked time work log
transition status state workflow close done progress resolve
board kanban scrum
epic theme initiative
backlog later
service desk support queue helpdesk
sla deadline due overdue
version release milestone
wiki confluence page article documentation knowledge
template blueprint skeleton
history change changelog version revision past
user person member people profile colleague teammate employee who
label tag category
todo task checklist reminder chore
performance slow speed fast profile trace load lag
console error warning message
network request http api traffic
heap ram memory leak
video film record screencast movie
pdf print printable
dialog popup alert prompt
dropdown select option choose pick
phone mobile device emulate tablet
resize size dimension width
environment variable env
echo repeat
checkout switch jump
stage add index
log history past recent commit
author wrote who
code source function script program
test verify assert check ensure
weather forecast rain temperature
payment invoice bill charge pay
refund money return
price cost
subscription plan
alert alarm monitor notification incident
metric graph dashboard chart
secret password credential token
language translate translation
summary summarize brief digest
block content
video clip
team group
old previous earlier former last
"""

# What people say → the words of tools for it. Phrases have spaces; words are compared by their stems.
_SAID = """
pr, prs, merge request: pull request
how many, how much, number of: count
how far, how long does it take: distance
how high, altitude: elevation
needs a ticket, file a, raise a, open a ticket, report a: create issue
get rid, throw away, throw out, no longer need: delete
look up, look for, get me the, came by, last week, last month, is there a, is there any, are there any: search
set up: create
go back, roll back, as it was: rollback revert
bring up to date, catch up: update
who can see, who may, who has access, allowed to: permission access
let, open up to, work with me on: share access permission
give to, hand over, take over, in charge: assign
remind, reminder, to do, do not forget, have to do, shopping list: task
on holiday, on vacation, away, day off, sick, on leave: office
am i free, are we free, free time, when can we meet, slot, busy: freebusy availability
agenda, my day, what is on, coming up, appointment, standup, workshop, interview, lunch, dinner, party: event calendar
meet, meeting, call with, invite: event calendar
write to, wrote to, wrote me, did anyone write, letter: mail message
newsletter, spam, automatically, from now on: filter rule
survey, questionnaire, poll, signup, quiz: form
answered, filled in, filled out, submitted, signed up: response
phone number, birthday, address book, reach: contact
deck, keynote: presentation slide
color, colour, red, green, yellow, bold, italic, highlight, look nicer: format
in column, in cell, in row, into column, into cell: value sheet
put into, type into, enter: write update
proposal, contract, minutes, handbook, essay, letter: document
spent, worked on, hours on, book hours, much time, time did: worklog
done, finished, in progress, resolved, reopen, status to: transition
depends on, blocked by, blocks, duplicate of, belongs to, belong, related to: link association
left in, remaining, still open: list search
later, not now, postpone: backlog
who did, who made, who wrote, who changed: history author
how often, how popular, visits, readers: view analytics
changed since, what changed, what is new: diff history
said in, talk about, talked about, discussed, conversation: message history
thumbs up, heart, smile, smiley, i like: reaction emoji
tell the team, tell everybody, announce, let everyone know, let them know: post message
get from, train, bus, bike, on foot, walk, way to, drive to: direction
near, nearby, closest, nearest, around here, around the corner: place nearby
pharmacy, restaurant, hotel, bar, museum, supermarket, doctor, station, bakery, cafe, bank, school, parking: place
street, which address, where exactly: geocode address
opening hours, open on, closes at, reviews of, rating: place detail
what time, o clock, am in, pm in, time in, time zone: time timezone
is what in, in my time, translate to our time: convert
article, blog, recipe, news, headline: web page url
internet, online, the web, google: search web
report on, study, background, deep dive, investigate: research
all pages, whole site, everything on the site: crawl
below, under, inside, sub: children child
customer, prospect, lead, supplier, vendor, firm: object company contact
deal, opportunity: object deal
phone call, log my, log a: engagement
field, what can i fill: property field
automation, automatic, automated: workflow
line with, new line, new entry: row record
notes, jot, write down: append note content
feedback, leave a note, opinion, people say, people think, people write, people wrote, did they say: comment
people answer, people reply, answers to, they answer: reply response
keep me posted, keep me informed, let me know when, tell me when, notify me: watch subscribe
over time, who touched: history changelog
only, nobody but, keep others out, hide from: restrict permission
without interruption, undisturbed, in peace, concentrate: focus
unread, from my: search message
the latest, today, this morning: recent
check off, tick off, complete: task update
picture of, photo of, how it looks, what it looks like: screenshot image
slow, takes so long, faster: performance trace
crash, broke, went wrong, error: log console error
behind the scenes, talks to: network request
film, record what: screencast
on my computer, on my laptop, on my machine, on my disk, on disk, hard drive: file filesystem
empty, nothing in it: new create
remember, keep in mind, know about, you know: memory observation entity
forget what, forget about: memory delete
bigger, more copies, more instances, spin up: scale
take out of service, maintenance: drain node cordon
back then, previous version, yesterday: history version
plus, add up, sum of: sum
unpaid, older than, more than, less than, above: filter query find
average, per month, per customer, grouped: aggregate
in an hour, for an hour, minutes only, until tomorrow: expire
next job, front of: pop queue
k8s: kubernetes
docs, doc: document
sms: text message
"""


def _grouped() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in _GROUPS.strip().splitlines():
        group = {stem(word) for word in line.split()}
        for word in group:
            found.setdefault(word, set()).update(group)
    return {word: frozenset(group - {word}) for word, group in found.items()}


SYNONYMS: Mapping[str, frozenset[str]] = MappingProxyType(_grouped())
"""Stem → the stems of words that may be meant."""


def _said() -> dict[str, tuple[str, ...]]:
    lines = (line.split(": ") for line in _SAID.strip().splitlines())
    return {
        " ".join(map(stem, said.split())): tuple(map(stem, meant.split()))
        for phrases, meant in lines
        for said in phrases.split(", ")
    }


_MEANT = _said()


def meant(query: str) -> list[str]:
    """The stems of what the phrases and file names of a query stand for, each once."""
    text = f" {' '.join(map(stem, split(query)))} "
    found = [root for said, roots in _MEANT.items() if f" {said} " in text for root in roots]
    found += [root for pattern, root in _PATTERNS if pattern.search(query)]
    endings = {ending.lower() for ending in _ENDING.findall(query)}
    found += ["url"] if endings & _DOMAINS else ()
    found += ["fil"] if endings - _DOMAINS else ()
    return list(dict.fromkeys(found))


def without_data(query: str) -> str:
    """A query without quotations, numbers and keys: they are data for a tool, and say nothing of the tool."""
    said = _DATA.sub(" ", _QUOTED.sub(" ", query))
    return said if len(split(said)) > 1 else query
