// Pushed events with their receipts, and channels as chats.
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app, go, useStore } from "../../store.js";
import { age, clock, duration } from "../../format.js";
import { Button, Chip, Segments } from "../../parts/controls.js";
import { ErrorNote } from "../../parts/notes.js";
import { Icon } from "../../parts/icons.js";
import { colourOf, live, take } from "./model.js";

const MODES = [
  ["accept", "Accept"],
  ["ask", "Ask me"],
  ["refuse", "Refuse"],
];
const STATES = {
  answered: ["ok", "check"],
  waits: ["warn", "clock"],
  accepted: ["ok", "check"],
  refused: ["bad", "close"],
};

function Event({ told, row }) {
  const [tone, icon] = STATES[row.state];
  const decide = allow => ask("live.decide", { number: row.number, allow });
  return html`<li class="ev">
    <span class=${`sq ${colourOf(told, row.set)}`}></span><b class="cut" title=${row.text}>${row.text}</b
    ><span class="tiny faint num" title=${clock(row.at)}>${age(row.at)}</span>
    <span class="b"
      ><${Chip} tone=${tone} icon=${icon}
        >${row.kind === "inference" && row.state === "waits" ? "asks your model" : row.state}<//
      ><span class="dim cut" title=${`${row.set}, ${row.id}`}>${row.reason || row.set}</span
      ><span class="grow"></span>${
        row.state === "waits" && row.kind === "inference"
          ? html`<${Button} small onClick=${() => go("questions")}>Answer<//>`
          : row.state === "waits" &&
            html`<${Button} small onClick=${() => decide(true)}>Accept<//
              ><${Button} small plain onClick=${() => decide(false)}>Refuse<//>`
      }</span
    >
  </li>`;
}

function Channel({ told, channel }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const end = useRef(null);
  const messages = told.messages.filter(each => each.channel === channel.id);
  useEffect(() => {
    if (end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [messages.length]);
  const send = async event => {
    event.preventDefault();
    if (!text.trim() || busy) return;
    setBusy(true);
    setError(null);
    try {
      await ask("live.publish", { era: told.era, channel: channel.id, text });
      setText("");
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  const close = () => ask("live.close", { era: told.era, channel: channel.id }).then(() => take(), setError);
  return html`<div class="head chanhead">
      <h2>Channel</h2>
      ${
        told.channels.length > 1
          ? html`<label class="in pick"
              ><span class="vh">Channel</span
              ><select class="bare" value=${channel.id} onChange=${event => live.set({ channel: event.target.value })}>
                ${told.channels.map(
                  each =>
                    html`<option key=${each.id} value=${each.id} selected=${each.id === channel.id}>
                      ${each.label}
                    </option>`,
                )}
              </select></label
            >`
          : html`<code class="cut">${channel.label}</code>`
      }<span class="grow"></span><${Chip} tone="ok">open<//><${Button} small plain onClick=${close}>Close<//>
    </div>
    <div class="body chat" ref=${end} tabindex="0" role="log" aria-label=${`Messages of ${channel.label}`}>
      ${
        messages.length
          ? messages.map(
              each =>
                html`<div key=${each.number}>
                  <div class=${`who${each.mine ? " me" : ""}`}>
                    <b>${each.mine ? "you, as host" : each.who}</b><span class="num">${clock(each.at, false)}</span>
                  </div>
                  <div class=${`msg wraps${each.mine ? " me" : ""}`}>${each.text}</div>
                  ${
                    each.mine &&
                    html`<div class="who me">
                      ${
                        each.delivered
                          ? html`<${Icon} name="check" s class="ok" />delivered, ${duration(each.ms)}`
                          : html`<${Icon} name="close" s class="bad" />not delivered`
                      }
                    </div>`
                  }
                </div>`,
            )
          : html`<p class="small dim">Nothing was said here yet.</p>`
      }
    </div>
    ${error && html`<div class="p12"><${ErrorNote} error=${error} /></div>`}
    <form class="bar" onSubmit=${send}>
      <label class="in"
        ><span class="vh">Write as the host</span
        ><input
          class="bare"
          placeholder="Write as the host"
          value=${text}
          onInput=${event => setText(event.target.value)} /></label
      ><${Button} primary icon="send" label="Send" type="submit" busy=${busy} />
    </form>`;
}

// A channel that the server opens for its host: its type, and the address as the server wants it.
function Opening({ told, onDone }) {
  const [type, setType] = useState(told.channels[0]?.type ?? ""),
    [address, setAddress] = useState("");
  const [error, setError] = useState(null),
    [busy, setBusy] = useState(false);
  const open = async event => {
    event.preventDefault();
    if (!type.trim() || busy) return;
    setBusy(true);
    setError(null);
    try {
      const { id } = await ask("live.open", { era: told.era, type: type.trim(), address });
      live.set({ channel: id });
      await take();
      onDone();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<form class="opening p12" onSubmit=${open}>
    <label class="in"
      ><span class="vh">Type of the channel</span
      ><input
        class="bare"
        placeholder="Type, such as chat"
        value=${type}
        spellcheck="false"
        onInput=${event => setType(event.target.value)}
    /></label>
    <label class="in mono"
      ><span class="vh">Address, text or JSON</span
      ><input
        class="bare"
        placeholder="Address, text or JSON"
        value=${address}
        spellcheck="false"
        onInput=${event => setAddress(event.target.value)}
    /></label>
    <${Button} small primary type="submit" busy=${busy} reason=${type.trim() ? null : "Give the type first"}>Open<//
    ><${Button} small plain onClick=${onDone}>Cancel<//>${error && html`<${ErrorNote} error=${error} />`}
  </form>`;
}

export function Feed({ told, tabs }) {
  const chosen = useStore(live, each => each.channel);
  const [, tick] = useState(0),
    [opens, setOpens] = useState(false);
  useEffect(() => {
    const timer = setInterval(() => tick(count => count + 1), 10000);
    return () => clearInterval(timer);
  }, []);
  const channel = told.channels.find(each => each.id === chosen) ?? told.channels[0];
  const mode = async value => {
    await ask("live.mode", { mode: value }).catch(() => {});
    take();
  };
  const fetchAll = async () => {
    await ask("live.collect", { era: app.get().era }).catch(error => live.set({ error }));
    take();
  };
  return html`${tabs}
    <div class="head">
      <h2 class="grow nowrap">Pushed events</h2>
      ${told.polls && html`<${Button} small plain icon="repeat" onClick=${fetchAll}>Fetch<//>`}<${Segments}
        label="What happens to an event"
        options=${MODES}
        value=${told.mode}
        onChange=${mode}
      />
    </div>
    <ul class=${`events${channel ? "" : " alone"}`}>
      ${
        told.events.length
          ? told.events.map(row => html`<${Event} key=${row.number} told=${told} row=${row} />`)
          : html`<li class="pad small dim">
              ${
                told.polls
                  ? "In this era a server cannot push. Fetch looks into its inboxes."
                  : "What the server pushes appears here, with its receipt."
              }
            </li>`
      }
    </ul>
    ${
      told.opens &&
      (opens
        ? html`<${Opening} told=${told} onDone=${() => setOpens(false)} />`
        : html`<div class="opening p12">
            <${Button} small plain icon="plus" onClick=${() => setOpens(true)}>Open a channel<//>
          </div>`)
    }
    ${channel && html`<${Channel} key=${channel.id} told=${told} channel=${channel} />`}`;
}
