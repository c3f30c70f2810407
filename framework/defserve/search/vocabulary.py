"""The words of people and the words of tools: whole phrases, and synonyms. Tables, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from defserve.search.entries import split_words, stem_word

_GROUPS = """
create make new add build generate compose draft insert register setup begin start write produce manage post
delete remove erase drop destroy discard forget clear wipe purge trash rid cancel unlink detach manage
update change edit modify alter set adjust revise rewrite replace patch amend fix correct manage adapt tweak
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
comment note remark feedback annotate annotation discussion opinion thought
react reaction emoji thumbs like
approve review accept confirm sign
assign assignee owner responsible delegate give hand
share permission access invite grant restrict restriction allow public visible private lock protect confidential
download save export fetch
upload attach attachment import
attachment file picture document enclosed
count many number tally amount how
total sum plus add aggregate
average mean statistics stats aggregate compute calculate
group aggregate summarize breakdown
link connect relate associate association relation tie
follow watch watcher subscribe observe notify inform
book schedule plan reserve arrange
sort order rank
convert translate transform turn
archive hide label
publish release deploy
format style bold italic color colour highlight font paint red green yellow blue
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
vacation holiday away absent leave office absence sick trip
focus concentrate undisturbed quiet
contact person people phone telephone address relative
customer company client crm account organization organisation firm business contact object buyer supplier prospect
deal sale opportunity lead object prospect
engagement call meeting note activity
property attribute field column
workflow automation sequence series automatic automatically rule
spreadsheet sheet excel workbook
cell value range number
slide presentation deck powerpoint
paragraph text section
header footer
table collection
base database
row record entry document item line
column field attribute property
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
memory remember recall knowledge graph entity observation fact
place restaurant cafe shop store location hotel nearby
geocode coordinate latitude longitude address position
direction route drive driving travel walk walking way bus bike bicycling car train transit journey trip ride reach
distance far long kilometer mile near travel quick
elevation height altitude high above sea
time clock hour timezone zone date morning noon afternoon evening night midnight
internet web online news google research headline
crawl scrape extract content site gather collect
map sitemap
sprint iteration
worklog hour spent effort booked time work log timesheet track
transition status state workflow close done progress resolve
board kanban scrum
epic theme initiative
backlog later
service desk support queue helpdesk
sla deadline due overdue
version release milestone
wiki confluence page article documentation knowledge guide handbook manual
template blueprint skeleton
history change changelog version revision past old previous earlier
user person member people profile colleague coworker teammate employee staff who everybody everyone team
label tag category
todo task checklist reminder chore
performance slow speed fast profile trace load lag
console error warning message
network request http api traffic
heap ram memory leak
video film record screencast movie
pdf print printable
dialog popup alert prompt confirm
dropdown select option choose pick
phone mobile device emulate tablet theme dark
resize size dimension width
environment variable env
markdown md
powerpoint ppt pptx slide presentation
excel xls xlsx csv spreadsheet sheet
word docx doc document
latitude lat
longitude lng lon
timezone tz
setting config configuration option preference
auth login authenticate authentication signin credential authorize
environment env
message msg dm
image img pic picture photo
information info detail about
delete del remove
pattern regex regexp wildcard glob
script js javascript macro
style css
office ooo vacation
unread inbox mail
coordinate latitude longitude gps
reviewer review approve
subtask child children
parent epic above
echo repeat
fetch retrieve download load read url html raw source
restrict lock private confidential protect limit only
append bottom end below tail
freeze pin stick frozen header
conditional rule automatic automatically
activity run execution happen process
dependency depend block wait
workspace team organization company
blame author wrote touched
stash shelve aside
key entry value
length size count many long
subscribe listen follow
set flag option setting toggle enable disable
invite attendee guest participant
remind reminder alarm task todo event
translate convert
explain meaning mean describe help
snapshot backup checkpoint save
merge accept land
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
block paragraph bullet text line section sentence
source database table tracker inventory
component module area part
permission right role viewer editor allowed
chart helm package app
namespace environment
replica copy instance
context cluster profile
locator selector xpath element
element button checkbox menu icon link
relation relationship friend connection
observation fact detail preference
hash map object dictionary
set member unique
score rank leaderboard point
stream feed event
broadcast publish announce subscriber
branch fork line
template pattern example model
attachment enclosure scan receipt
unread new inbox
guest attendee participant invitee
title headline heading name
size big large space
type kind sort category
owner responsible lead
deadline due overdue date
reminder alarm notification
answer solution explanation help
website shop store homepage
price quote rate
account login profile user
old previous earlier former last
"""


def _build_synonyms() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in _GROUPS.strip().splitlines():
        group = {stem_word(word) for word in line.split()}
        for word in group:
            found.setdefault(word, set()).update(group)
    return {word: frozenset(group - {word}) for word, group in found.items()}


SYNONYMS: Mapping[str, frozenset[str]] = MappingProxyType(_build_synonyms())
"""Stem → the stems of words that may be meant."""


# -- Whole phrases of a query, and what they stand for in the words of tools.


# What people say → the words of tools for it. Phrases have spaces; words are compared by their stems.
_SAID = """
stop accepting, accept answers, accept responses, take answers, close the form, reopen the form: publish settings form
add a question, another question, change the question, multiple choice: form update
wider, narrower, column width, row height, freeze, hide the column: resize dimension sheet
colour code, color code, if the value is: conditional format
add up, count up, work out the total: sum aggregate
mark as unread, archive the mail, star it, out of my inbox: label message modify
whole conversation, whole thread, back and forth, exchange with: thread content
what is attached, attached to the mail, enclosed: attachment content
prepare a reply: draft
every night, every morning, every hour, on a schedule, at midnight: trigger schedule
web app, go live, put it live: deployment
block my time, no meetings, do not disturb: focus time
decline invitations, auto reply: office decline
when are we all free, all be there, time that suits, works for everyone: freebusy availability
other calendars, which calendars, separate calendar: calendar list create
picture of the slide, thumbnail: page image render
first response, in time, breached, how fast did we: sla date
which fields do i, what must i fill in, required fields: field create
who is watching, who follows, stop watching, stop following, unfollow: watcher
under the epic, part of a bigger, parent ticket: epic link
this part of the page, one section, only the section, single section: section update
on that sentence, next to the sentence, in the margin: inline comment
based on the template, from a template: template create
copy of the page, duplicate the page: copy page
tick the box, checkbox, bullet, paragraph in: block
which fields, which columns, which properties, what columns: describe property list field
which base, which bases, which databases: list base database
open it in, link to the record, direct link: get link
connect them, are related, knows each other, belongs together, works with: relation link create
everything you know, what you know about me, whole memory: read graph
most space, biggest, how large, how big, takes up space: size stats
speed up, faster query, slow query, use the index: index explain
save as json, dump, to a file: export
listen for, wait for messages, keep listening: subscribe channel
is it there, does it exist, is there a key: exist
leaderboard, high score, top ten, ranking of: sorted set score
next in line, take the next, oldest job, newest job: pop list
onto the queue, to the queue, add a job: push list
who is connected, open connections, logged on: client connection list
shell into, get inside, inside the container, command in the pod: exec pod
reach it locally, on localhost, from my laptop, open a port: port forward
which cluster, other cluster, switch cluster: context
keeps crashing, keeps restarting, crash loop, does not start, will not start: describe log event pod
still alive, is it up, reachable, is it running: ping status get
no more pods, empty the node, patch the machine: drain node
what is this field, what does the field mean, allowed fields: explain resource schema
what have i changed, anything uncommitted: status diff
ready to commit, for the next commit, stage: add staged
other branch, go to branch, onto the branch: checkout branch
last commits, what happened lately, recent work: log commit list
approve, request changes, looks good to me: review create pull request
is it green, did ci pass, checks pass: status pull request
dark mode, night mode, offline mode, slow connection, as on a phone: emulate
accessible, accessibility, seo, best practices: audit lighthouse
which font, which color is, how is it styled: css style
is it visible, is it shown, does it appear, make sure the page shows: verify visible text
pick from the list, from the dropdown: select option fill
previous page, one page back, the page before: back navigate
all tabs, open tabs, which tabs, next tab: tab page list
environment variables, which settings does the server: env
several files at once, all these files: multiple file read
first lines, last lines, head of, tail of: read text file
how large are the files, file sizes, when was the file: size info
where may you, allowed folders, which folders may: allowed directory list
in the loop, stay informed, stay up to date, hear about: watch notify subscribe
by bike, by car, by train, by bus, by foot, get to, get from, quickest way, which way: direction route
how long is the, how far away, closest to: distance
do i have, have i got, what do i have, am i doing, my week, my schedule: event calendar list
past due, too old: overdue date
locked down, who can open, can anyone, can anybody, open to everyone: public access permission
by itself, on its own, every time, whenever: automatic rule
as it is, the source, page source: raw html content
look into, thoroughly, in depth, pros and cons, deeply: research
this link, that link, the link, this article, that article, this url: url fetch extract content
everybody in, everyone in, who all, who is in, names of, all people: list user member
add her to, add him to, add them to: create contact
at the bottom, at the end, at the top: append insert
belongs under, goes under, put under: move parent
when does it open, when does it close, still open: place detail hour
let people know, let everybody know, let her know, let him know, inform: send message post
what did they say, what was said, what people wrote, catch up on: message history
to the left, to the right: drag move
for my eyes only, just for me, nobody else: restrict private permission
has to wait, waiting for, waits for, comes first: dependency link block
how long was, how long has, how long did, how old: date history sla
too late to, what hour: current time timezone
when is that, what time is that, is what time: convert time timezone
another column, new field: create field property column
another row, one more row: create record row
memory leak: heap memory snapshot
no longer, not any more, any longer, closed for: stop disable delete
a link to: shareable link
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
let her, let him, let them, may edit, can edit, open up to, work with me on: share access permission
give to, hand over, take over, in charge: assign
remind, reminder, to do, do not forget, have to do, shopping list: task
on holiday, on vacation, away, day off, sick, on leave: office
am i free, are we free, free time, when can we meet, slot, busy: freebusy availability
agenda, my day, what is on, coming up, appointment, standup, workshop, interview, lunch, dinner, party: event calendar
meet, meeting, call with, invite: event calendar
write to, wrote to, wrote me, did anyone write, letter: mail message
newsletter, spam, automatically, from now on: filter mail
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
article, blog, recipe, news, newspaper, headline, magazine: web page url search
internet, online, the web, google: search web
report on, study, background, deep dive, investigate: research
all pages, whole site, everything on the site, collect all: crawl
below, under, inside, sub: children child
hangs on, stuck to, comes with: attachment
say that, write on, mention that, point out: comment
everything that, everything from, anything about: search list
next step, can it go to, where can it go: transition
accepted, declined, coming to, taking part, guest, attendee: event attendee
duplicate of, same as: link
overdue, late, urgent, high priority, assigned to me: search issue
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
put on the calendar, put in my calendar, in my diary, pencil in: event calendar create
reschedule, bring forward, push back: event update
cancel the meeting, call off: event delete
double booked, clash, who else is invited: event calendar
rsvp, invitation, invitee: event attendee
inbox, in my mail, mailbox, by mail, reply to all, cc: mail message
answer his, answer her, write back, get back to: reply send
sort my mail, move mail, mark as read, star: label message
unsubscribe, block sender: filter mail
on my drive, in the cloud, shared folder, dropbox: drive file
make a copy, save as: copy
share with, send the link, public link, anyone with the link: share permission link
stop sharing, revoke: permission access remove
rewrite, rephrase, add a paragraph, add a sentence, type up: document text update
typo, misspelled, throughout, everywhere: find replace
add a picture, insert a picture: insert image
table of, in a table, as a table: table
formula, calculate in the sheet, pivot: sheet value
sort by, alphabetically: sort
new tab, second tab, another tab: sheet tab create
who commented, resolve the comment, remarks: comment
bullet points, heading, title: paragraph style
as pdf, as a pdf, to pdf: export pdf
pitch, talk, lecture: presentation
shopping list, groceries, chores, by tomorrow, deadline: task
colleague, boss, friend, who is: user contact profile
team page, intranet, our guide, manual, how to guide, handbook: wiki page document
write up, document how, take notes of: page create document
meeting notes, minutes of: page document note
post on the page, add to the page, put on the page, put on the team page: page update content
older version, who edited, revision: history version
most read, popular: view
keep it private, only for, lock the page, confidential: restrict permission
ticket about, bug report, feature request, report that, complain: issue create
what is the status of, how far is, any progress: issue status get
pick up, take this ticket, work on it: assign transition
mark as done, set to done, start work on, in review: transition status
estimate, story points: field update
bundle, part of the epic, belongs to the epic: epic link
next sprint, this sprint, iteration: sprint
release notes, shipped, fix version: version release
waiting customer, support request, helpdesk: service desk request
hours worked, timesheet: worklog
drop a message, ping the, message the team, shout, heads up: post message channel
in the thread, under that message: thread reply
what did i miss, catch me up, scroll back: history message
join, member of the channel: channel member user
direct message, dm: message user
celebrate, applaud, party emoji: reaction
fastest way, how to get to, route to, travel time, commute: direction
where can i eat, where can i buy, good place, somewhere to: place search
coordinates of, latitude, longitude, gps: geocode
how steep, sea level: elevation
is it open, telephone number of, menu of: place detail
what day, which day, right now: time current
in local time, our time, their time: convert timezone
find out about, what is known about, look into, tell me about: research search
who won, latest on, current events, stock price: search web news
summary of this page, what does the page say, read the page, content of the site: fetch extract page
sub pages, linked pages, site structure: map crawl
account of, clients from, companies in, people at: search object company contact
talked to, met with, spoke with, had a call: engagement note create
which company, works for, employer: association company
new lead, new client, new customer, new contact: create object contact
follow up, next step with: task engagement
custom field, extra field: property create field
list of our, overview of our, directory of: list
throw out rows, clean out: delete record
change the value, fill in the column, set the status: update record
attach the, receipt, scan: attachment upload
pay, paid, owe, charge the card, bill the: payment invoice charge
give the money back, reimburse: refund
outage, is it down, down again, alerting: incident alert monitor
how busy, load, usage, traffic: metric
rainy, sunny, umbrella, degrees: weather forecast
save this file, write this to, put this in a file: write file
which files, what is in the folder, folder content: list directory
find the file, where is the file: search file
rename the file, other name: move file rename
undo my, throw my changes away: reset checkout
what did i change, my changes, not committed: diff status
save my work, check in my: commit
publish my branch, push my: push branch
ask for review, open a pr: pull request create
who approved, reviewer: review
is the build, did the tests, tests pass: status check
report the bug, file an issue: issue create
open the site, go to the page, visit: navigate page
press the, hit the button: click
fill out, fill in the form, my details: fill form
log me in, sign me in: fill form type
read the screen, what is on the page: snapshot text
wait for the page, until it appears: wait
open a new tab, close the tab: tab page
run some javascript, in the console: evaluate script
users older than, documents where, all orders, entries where: find query
how many documents, how many rows: count
insert a document, add a row: insert
which tables, what tables, collections are there: list table collection
what does the table look like, columns of: describe schema
make the query faster, speed up the query: index explain
remove the key, drop the key: delete key
set a value, store under: set key
logs of, what does the pod say: log pod
more pods, more replicas, fewer replicas: scale replica
why does the pod, pod keeps crashing: describe log pod
roll out, new image: rollout deployment
what do you know, do you remember, recall: search memory graph
learn that, note that, keep in mind that: memory observation create
k8s: kubernetes
docs, doc: document
sms: text message
"""


def _parse_phrases() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in _SAID.strip().splitlines():
        phrases, meant = line.split(": ")
        for said in phrases.split(", "):
            roots = " ".join(map(stem_word, said.split()))
            found[roots] = (*found.get(roots, ()), *map(stem_word, meant.split()))
    return found


def expand_phrases(query: str) -> list[str]:
    """The stems of what the phrases of a query stand for, each once."""
    text = f" {' '.join(map(stem_word, split_words(query)))} "
    return list(dict.fromkeys(root for said, roots in _MEANT.items() if f" {said} " in text for root in roots))


_MEANT = _parse_phrases()
