// Topics: a seat in a topic of a gateway. Who is there, what is proposed, and to approve or decline it.
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { ask } from "../socket.js";
import { app, createStore, toast, useStore } from "../store.js";
import { useKeys } from "../keys.js";
import { age, clock, cut, plural } from "../format.js";
import { Button, Chip } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { List } from "../parts/lists.js";
import { Empty, ErrorNote } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";

const KEPT = "defserve.topic"; // the address and the name of the topic; never the token
const GONE = "gone";
const kept = () => {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
};

// The seat stays while other panels are shown: a proposal waits for five minutes only.
const store = createStore({
  told: null,
  error: null,
  joining: null,
  where: null,
  chosen: null,
  busy: {},
  failed: {},
  able: {},
});

export function join(url, topic, token) {
  leave();
  const asked = ask("topics.follow", { url, topic, token }, told => {
    const before = new Set((store.get().told?.proposals ?? []).map(each => each.digest));
    for (const each of told.proposals) {
      if (
        store.get().told &&
        !before.has(each.digest) &&
        each.status === "pending" &&
        app.get().route.panel !== "topics"
      )
        toast(`${each.proposer} proposes ${each.what}`);
    }
    // The chosen one stays: what comes meanwhile must not get the yes that was meant for another. If it is gone, none
    // is chosen.
    const { chosen } = store.get(),
      known = told.proposals.some(each => each.digest === chosen);
    const first = (told.proposals.find(each => each.status === "pending") ?? told.proposals.at(-1))?.digest ?? null;
    store.set({ told, chosen: known ? chosen : chosen === null ? first : GONE });
  });
  store.set({ joining: asked, error: null, where: { url, topic } });
  localStorage.setItem(KEPT, JSON.stringify({ url, topic }));
  asked.catch(error => {
    if (store.get().joining === asked) store.set({ told: null, joining: null, error: error.cancelled ? null : error });
  });
}

function leave() {
  store.get().joining?.cancel();
  store.set({ told: null, joining: null, error: null, busy: {}, failed: {}, able: {}, chosen: null });
}

async function decide(verb, id, more = {}) {
  store.set(state => ({ busy: { ...state.busy, [id]: verb }, failed: { ...state.failed, [id]: null } }));
  try {
    const done = await ask(`topics.${verb}`, { seat: store.get().told.seat, proposal: id, ...more });
    store.set(state => ({ able: { ...state.able, [id]: done?.able } }));
  } catch (error) {
    store.set(state => ({ failed: { ...state.failed, [id]: error } }));
  } finally {
    store.set(state => ({ busy: { ...state.busy, [id]: null } }));
  }
}

// A status → icon, tone, what the proposer's line says.
const STATUS = {
  pending: ["question", "warn", "proposes"],
  fulfilled: ["spinner", "acc", "has it done"],
  completed: ["check", "ok", "did"],
  failed: ["warning", "bad", "tried"],
  declined: ["close", "bad", "proposed"],
  withdrawn: ["undo", "faint", "withdrew"],
  expired: ["clock", "faint", "proposed"],
};
const statusOf = proposal => STATUS[proposal.status] ?? ["question", "dim", proposal.status];
const nameOf = proposal => proposal.what;
const outcome = proposal =>
  ({
    completed: `approved by ${proposal.by ?? "somebody"}`,
    fulfilled: `approved by ${proposal.by ?? "somebody"}`,
    declined: `declined${proposal.reason ? `: ${proposal.reason}` : ""}`,
    failed: proposal.error,
    withdrawn: proposal.reason,
    expired: "nobody decided in time",
  })[proposal.status] ?? "";

function Join({ error, busy }) {
  const [url, setUrl] = useState(kept().url ?? "ws://127.0.0.1:8100/ws"),
    [topic, setTopic] = useState(kept().topic ?? "demo"),
    [token, setToken] = useState("");
  // An address that names its topic is taken apart.
  const setAddress = text => {
    const [, before, after] = /^(\S*?)[?]([^\s#]*)/.exec(text.trim()) ?? [];
    const query = new URLSearchParams(after ?? "");
    if (!query.get("topic")) {
      setUrl(text);
      return;
    }
    setTopic(query.get("topic"));
    query.delete("topic");
    setUrl(before + (query.size ? `?${query}` : ""));
  };
  const field = (id, words, value, set, type = "text", help) =>
    html`<div class="field">
      <span class="lab"><label for=${id}>${words}</label></span
      ><span class="in mono"
        ><input
          class="bare"
          id=${id}
          type=${type}
          value=${value}
          autocomplete="off"
          spellcheck="false"
          onInput=${event => set(event.target.value)} /></span
      >${help && html`<span class="tiny faint">${help}</span>`}
    </div>`;
  return html`<${Panes} id="topicjoin" class="p-join" title="Topics"
    ><${Pane} label="Join a topic"
      ><div class="head"><h2>Topics</h2></div>
      <div class="body">
        <form
          class="tform"
          onSubmit=${event => {
            event.preventDefault();
            join(url, topic, token);
          }}
        >
          <p class="dim">
            In a topic, servers, agents and people meet at a gateway. Agents propose, and you approve or decline.
          </p>
          ${field("t-url", "gateway", url, setAddress)}${field("t-topic", "topic", topic, setTopic)}${field(
            "t-token",
            "token",
            token,
            setToken,
            "password",
            "It goes to the gateway, and is not kept.",
          )}
          <button type="submit" class="btn pri start" disabled=${busy}>Join</button>
          ${error && html`<${ErrorNote} error=${error} />`}
          <p class="small dim">
            To start a gateway:${" "}
            <code class="wraps">defserve gateway --on ws://127.0.0.1:8100/ws --config gateway.toml</code>
          </p>
        </form>
      </div><//
    ><//
  >`;
}

function Row({ proposal }) {
  const [icon, tone, words] = statusOf(proposal);
  return html`<span class="trow"
    ><${Icon} name=${icon} s class=${tone} /><span class="cut"
      ><b>${proposal.proposer}</b> <span class="dim">${words}</span> <code>${nameOf(proposal)}</code></span
    ><span class="tiny faint">${age(proposal.created)}</span>
    <span class=${`small dim cut${proposal.status === "pending" ? " mono" : ""}`}
      >${
        proposal.status === "pending"
          ? cut(proposal.arguments.replace(/\s*\n\s*/g, " "), 200)
          : outcome(proposal) || proposal.status
      }</span
    ></span
  >`;
}

function Detail({ proposal, busy, failed, able, reason, setReason }) {
  const waits = proposal.status === "pending";
  return html`<div class="body">
    <p>
      <b>${proposal.proposer}</b> ${waits ? "proposes that" : "proposed that"} <b>${proposal.to}</b> does${" "}
      <code class="wraps">${proposal.what}</code>.
    </p>
    <pre class="knote wraps" tabindex="0" aria-label="Arguments">${proposal.arguments || "no arguments"}</pre>
    ${proposal.warning && html`<p class="small warn">${proposal.warning}</p>`}
    ${
      waits
        ? html`<div class="row wrap tdecide">
              <${Button} primary keys="Y" busy=${busy === "approve"} onClick=${() => decide("approve", proposal.digest)}
                >Approve<//
              ><${Button}
                keys="N"
                busy=${busy === "decline"}
                onClick=${() => decide("decline", proposal.digest, { reason })}
                >Decline<//
              >
              <span class="in treason"
                ><input
                  class="bare"
                  aria-label="Why it is declined"
                  placeholder="reason, if you decline"
                  value=${reason}
                  onInput=${event => setReason(event.target.value)}
              /></span>
            </div>
            ${
              able &&
              html`<p class="small">${able.length ? "Several can do it. Who shall?" : "Nobody here can do it."}</p>
                <div class="row wrap">
                  ${able.map(
                    name =>
                      html`<${Button} small key=${name} onClick=${() => decide("approve", proposal.digest, { name })}
                        >${name}<//
                      >`,
                  )}
                </div>`
            }`
        : html`<p class=${statusOf(proposal)[1]}>
              ${proposal.status}${outcome(proposal) ? `, ${outcome(proposal)}` : ""}
            </p>
            ${
              proposal.result &&
              html`<pre class="knote wraps" tabindex="0" aria-label="Result">${proposal.result}</pre>`
            }`
    }
    ${failed && html`<${ErrorNote} error=${failed} />`}
  </div>`;
}

function Said({ told }) {
  const [text, setText] = useState(""),
    [error, setError] = useState(null);
  const say = event => {
    event.preventDefault();
    if (!text.trim()) return;
    ask("topics.say", { seat: told.seat, text }).then(() => {
      setText("");
      setError(null);
    }, setError);
  };
  return html`<div class="body tsaid" tabindex="0" role="region" aria-label="What was said">
      ${told.said.map(
        (line, at) =>
          html`<p key=${at} class=${line.kind === "chat" ? "" : line.kind === "problem" ? "bad" : "dim"}>
            <span class="ts">${clock(line.time, false)}</span>${" "}
            <b>${line.who}</b>${line.kind === "chat" ? ":" : ""} ${line.text}
          </p>`,
      )}${!told.said.length && html`<p class="dim">Nobody has said anything since you joined.</p>`}
      ${error && html`<${ErrorNote} error=${error} />`}
    </div>
    <form class="bar tsay" onSubmit=${say}>
      <span class="in grow"
        ><input
          class="bare"
          aria-label="Say something to everyone"
          placeholder="Say something to everyone"
          value=${text}
          onInput=${event => setText(event.target.value)} /></span
      ><button type="submit" class="btn">Say</button>
    </form>`;
}

function Seat({ state }) {
  const { told, where, chosen, busy, failed, able } = state;
  const [reason, setReason] = useState(""),
    [show, setShow] = useState("");
  const list = useRef(null);
  useLayoutEffect(() => setReason(""), [chosen]);
  const all = [...told.proposals].reverse(),
    waiting = all.filter(each => each.status === "pending"),
    over = all.filter(each => each.status !== "pending");
  const current = all.find(each => each.digest === chosen);
  const key = verb => () => {
    if (current?.status !== "pending") return false;
    decide(verb, current.digest, verb === "decline" ? { reason } : {});
    return true;
  };
  useKeys({
    y: key("approve"),
    n: key("decline"),
    escape: () => {
      if (!show) return false;
      setShow("");
      return true;
    },
  });
  const groups = [
    { key: "waiting", label: "Waiting", items: waiting },
    { key: "over", label: "Over", items: over },
  ].filter(group => group.items.length);
  return html`<${Panes} id="topics" class="p-topics" title="Topics" show=${show}>
    <${Pane} label="Proposals" class="tp-list"
      ><div class="head">
        <h2>Topic</h2>
        <code class="cut grow" title=${where.url}>${where.topic}</code
        ><span class="tiny dim nowrap">${plural(told.participants.length, "participant")}</span
        ><span class="only-m"><${Button} small icon="chat" onClick=${() => setShow("show-said")}>Chat<//></span
        ><${Button} small onClick=${leave}>Leave<//>
      </div>
      <div class="row wrap tpeople">
        ${told.participants.map(
          each =>
            html`<${Chip} key=${each.name} title=${`may send ${each.may.join(", ") || "nothing"}`}
              ><span class="dot ok"></span>${each.name}${each.name === told.me ? ", you" : ""}<//
            >`,
        )}
      </div>
      ${
        all.length
          ? html`<${List}
              label="Proposals"
              id="topics"
              groups=${groups}
              keyOf=${each => each.digest}
              selected=${current?.digest}
              onSelect=${id => store.set({ chosen: id })}
              onOpen=${() => setShow("show-detail")}
              row=${proposal => html`<${Row} proposal=${proposal} />`}
              rowClass="titem"
              listRef=${list}
            />`
          : html`<${Empty} icon="people" title="Nothing is proposed">What agents propose appears here.<//>`
      }<//
    >
    <${Pane} label="Proposal" class="tp-detail"
      ><div class="head">
        <span class="only-m"
          ><${Button} icon="left" plain label="Back to the proposals" onClick=${() => setShow("")}
        /></span>
        <h2 class="cut">${current ? nameOf(current) : "Proposal"}</h2>
      </div>
      ${
        current
          ? html`<${Detail}
              key=${current.digest}
              proposal=${current}
              busy=${busy[current.digest]}
              failed=${failed[current.digest]}
              able=${able[current.digest]}
              reason=${reason}
              setReason=${setReason}
            />`
          : html`<div class="body"></div>`
      }<//
    >
    <${Pane} label="Chat" class="tp-said"
      ><div class="head">
        <span class="only-m"
          ><${Button} icon="left" plain label="Back to the proposals" onClick=${() => setShow("")}
        /></span>
        <h2>Chat</h2>
      </div>
      <${Said} told=${told} /><//
  ><//>`;
}

function Panel() {
  const state = useStore(store);
  return state.told ? html`<${Seat} state=${state} />` : html`<${Join} error=${state.error} busy=${!!state.joining} />`;
}

export const topicsPanel = {
  Panel,
  keys: [
    ["Y", "approve the proposal"],
    ["N", "decline it"],
  ],
  count: () => {
    const waiting = useStore(store, each => each.told?.proposals.filter(one => one.status === "pending").length ?? 0);
    return waiting ? { hot: waiting } : 0;
  },
};
