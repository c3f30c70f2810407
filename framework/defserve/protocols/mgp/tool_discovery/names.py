"""The names of the meta-tools, in every spelling that is taken."""

from __future__ import annotations

DISCOVER, REQUEST, CALL = "mgp_tools_discover", "mgp_tools_request", "mgp_tools_call"
SESSION, EVICT = "mgp_tools_session", "mgp_tools_evict"

# Spelling → the name in lists, which has no dots and slashes because some models take none.
SPELLINGS = {name.replace("_", mark): name for name in (DISCOVER, REQUEST, CALL, SESSION, EVICT) for mark in "_./"} | {
    "mgp/tools/session/evict": EVICT,
    "mgp.tools.session.evict": EVICT,
}
