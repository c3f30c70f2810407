"""Words that people use for what tools do, and the words that tools use for it.

Each line is a group: whoever says one of its words may mean a tool that says another. Groups are wide on purpose, and a
synonym counts less than the word itself. Verbs of reading are left out: they would bring half of all tools. The words
are those of offices, developers, data and the web.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from defserve.search.words import stem

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


def _grouped() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in _GROUPS.strip().splitlines():
        group = {stem(word) for word in line.split()}
        for word in group:
            found.setdefault(word, set()).update(group)
    return {word: frozenset(group - {word}) for word, group in found.items()}


SYNONYMS: Mapping[str, frozenset[str]] = MappingProxyType(_grouped())
"""Stem → the stems of words that may be meant."""
