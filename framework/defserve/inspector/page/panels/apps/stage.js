// The right pane: the view in its frame, its messages, what it may reach, and the result that it shows.
import { html, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { bytes, clock, duration, number, plural } from "../../format.js";
import { useStore } from "../../store.js";
import { Block } from "../../parts/content.js";
import { Button, Chip, Copy, Tabs } from "../../parts/controls.js";
import { Icon } from "../../parts/icons.js";
import { Json } from "../../parts/json.js";
import { VirtualList } from "../../parts/lists.js";
import { Empty, ErrorNote, Note } from "../../parts/notes.js";
import { Pane } from "../../parts/panes.js";
import { bridge } from "./bridge.js";
import { enter, guard } from "./focus.js";
import { change, close, show, store } from "./state.js";

const WISHES = {
  camera: "camera",
  microphone: "microphone",
  geolocation: "where you are",
  "clipboard-write": "writing to the clipboard",
};

// The sandbox gives the view no origin; the policy that its document comes with says what it may reach.
function Frame({ open, allowed }) {
  const own = useRef(null),
    around = useRef(null);
  useLayoutEffect(() => {
    const ends = [
      bridge(open.n, open.app, own.current),
      guard(around.current, own.current, reason => change(open.n, () => ({ state: "stopped", reason }))),
    ];
    return () => ends.forEach(end => end());
  }, []);
  return html`<div class="framed" ref=${around}>
    <iframe
      ref=${own}
      class=${`view${open.border === false ? "" : " bordered"}`}
      title=${`View of ${open.tool}`}
      sandbox="allow-scripts"
      referrerpolicy="no-referrer"
      allow=${allowed.join("; ")}
      src=${open.url}
      style=${open.mode === "fullscreen" ? {} : { height: `${open.height || 240}px` }}
    ></iframe>
  </div>`;
}

function Calling({ open }) {
  const { progress, total, message } = open.progress ?? {};
  const share = total ? Math.min(1, progress / total) : null;
  return html`<div class="part pad">
    <div class="row progress">
      <b class="grow cut">${message ?? `Calling ${open.tool}`}</b
      ><${Button} small icon="stop" keys="Esc" onClick=${close}>Cancel<//>
    </div>
    <svg
      class=${`meter${share === null ? " unknown" : ""}`}
      preserveAspectRatio="none"
      viewBox="0 0 100 6"
      role="progressbar"
      aria-label="Progress"
    >
      <rect width=${share === null ? 30 : share * 100} height="6" />
    </svg>
  </div>`;
}

const name = entry => entry.method ?? (entry.failed ? "error" : "answer");

function Messages({ open }) {
  const [chosen, setChosen] = useState(null);
  const rows = open.messages,
    at = rows.findIndex(entry => entry.n === chosen),
    entry = rows[at];
  if (!rows.length)
    return html`<div class="body">
      <${Empty} icon="wire" title="No messages yet">What the view and the page say to each other appears here.<//>
    </div>`;
  return html`${
      open.count > rows.length &&
      html`<p class="tiny dim pad">The newest ${number(rows.length)} of ${plural(open.count, "message")}.</p>`
    }
    <${VirtualList}
      label="Messages"
      count=${rows.length}
      height=${28}
      follow
      rowClass="brow"
      columns=${4}
      selected=${at < 0 ? null : at}
      onSelect=${index => setChosen(rows[index]?.n)}
      row=${index => {
        const each = rows[index];
        return html`<span
            role="gridcell"
            class=${each.from === "view" ? "acc" : "ok"}
            title=${each.from === "view" ? "from the view" : "to the view"}
            ><${Icon} name=${each.from === "view" ? "received" : "sent"} s /><span class="vh"
              >${each.from === "view" ? "from the view" : "to the view"}</span
            ></span
          >
          <span role="gridcell" class=${`mono cut${each.failed ? " bad" : ""}`}
            >${name(each)}${each.of && html` <span class="faint">${each.of}</span>`}</span
          ><span role="gridcell" class="num faint">${each.id === null ? "" : String(each.id)}</span
          ><span role="gridcell" class="num faint no-m">${bytes(each.size)}</span
          ><span role="gridcell" class="num faint no-m">${clock(each.at)}</span>`;
      }}
    />
    ${
      entry && html`<div class="bmessage"><${Json} value=${entry.data} copy label=${`Message ${name(entry)}`} /></div>`
    }`;
}

function Policy({ open, allowed, setAllowed }) {
  const toggle = wish =>
    setAllowed(allowed.includes(wish) ? allowed.filter(each => each !== wish) : [...allowed, wish]);
  return html`<div class="body stream">
    <dl class="kv">
      <dt>view</dt>
      <dd class="mono wraps">${open.uri}</dd>
      <dt>size</dt>
      <dd>${bytes(open.size)}</dd>
      ${
        open.domain &&
        html`<dt>domain</dt>
          <dd class="mono">${open.domain}</dd>`
      }
      <dt>border</dt>
      <dd>${open.border === null ? "not said" : open.border ? "wanted" : "not wanted"}</dd>
    </dl>
    <div class="part">
      <h3>May reach</h3>
      ${
        open.reaches.length
          ? html`<div class="facts">
              ${open.reaches.map(each => html`<${Chip} tone="warn" icon="link" key=${each}>${each}<//>`)}
            </div>`
          : html`<p class="dim">Nothing. Its server names no origin.</p>`
      }
    </div>
    ${
      open.refused.length > 0 &&
      html`<${Note} tone="warn" fact="Not everything it asks for is allowed."
        >${open.refused.join(", ")}: no view reaches the inspector, and one of a server elsewhere does not reach this
        machine or its network.<//
      >`
    }
    <div class="part">
      <h3>Wishes</h3>
      ${
        open.permissions.length
          ? html`<div class="facts">
                ${open.permissions.map(
                  wish =>
                    html`<label class="row" key=${wish}
                      ><input type="checkbox" checked=${allowed.includes(wish)} onChange=${() => toggle(wish)} /><span
                        >${WISHES[wish] ?? wish}</span
                      ></label
                    >`,
                )}
              </div>
              <p class="tiny dim">A change loads the view anew. The browser asks you as well.</p>`
          : html`<p class="dim">None: no camera, no microphone, no place, no clipboard.</p>`
      }
    </div>
    <div class="part">
      <h3>Content-Security-Policy<span class="grow"></span><${Copy} text=${open.policy} label="Copy the policy" /></h3>
      <ul class="policy mono small">
        ${open.policy.split("; ").map(each => html`<li key=${each}>${each}</li>`)}
      </ul>
    </div>
  </div>`;
}

const Result = ({ open }) =>
  html`<div class="body stream">
    ${(Array.isArray(open.result.content) ? open.result.content : []).map(
      (block, at) => html`<${Block} key=${at} block=${block} />`,
    )}
    <div class="part">
      <h3>Whole result</h3>
      <${Json} value=${open.result} copy label="Whole result" />
    </div>
  </div>`;

export function Stage({ head }) {
  const open = useStore(store, state => state.open),
    bridged = useStore(store, state => state.bridge);
  const [tab, setTab] = useState("view");
  const [allowed, setAllowed] = useState([]);
  useLayoutEffect(() => {
    setTab("view");
    setAllowed([]);
  }, [open?.n]);
  if (!open)
    return html`<${Pane} label="View" class="t-res"
      >${head}
      <div class="body">
        <${Empty} icon="window" title="No view is shown"
          >Fill in the form and show the app. It runs here, in a frame that cannot reach this page.<//
        >
      </div><//
    >`;
  const shown = open.state === "shown",
    whole = open.mode === "fullscreen";
  const again = html`<${Button} small onClick=${() => show(open.tool, open.arguments)}>Show again<//>`;
  const tabs = [
    ["view", "View"],
    ["messages", html`Messages <span class="num faint">${number(open.count)}</span>`],
    ...(open.url
      ? [
          ["policy", "Policy"],
          ["result", "Result"],
        ]
      : []),
  ];
  return html`<${Pane} label="View" class=${`t-res stage${whole ? " whole" : ""}`}
    >${head}<${Tabs} label="View" tabs=${tabs} value=${tab} onChange=${setTab}>
      ${shown && html`<${Button} small plain icon="close" label="Close the view" onClick=${close} />`}<//
    >
    ${
      open.state === "stopped" &&
      html`<div class="pad">
        <${Note} tone="bad" role="alert" fact="The view was stopped." actions=${again}
          >${open.reason} Its last messages are kept.<//
        >
      </div>`
    }
    ${
      open.state === "closed" &&
      html`<div class="pad"><${Note} icon="window" fact="The view is closed." actions=${again} /></div>`
    }
    <div class=${`body viewbody${tab === "view" ? "" : " away"}`} role="tabpanel" aria-label="View">
      ${open.state === "calling" && html`<${Calling} open=${open} />`}
      ${
        open.state === "failed" &&
        html`<${ErrorNote}
          error=${open.error}
          fact=${`${open.tool} has no view to show.`}
          onRetry=${() => show(open.tool, open.arguments)}
        />`
      }
      ${shown && html`<${Frame} key=${`${open.url} ${allowed.join()}`} open=${open} allowed=${allowed} />`}
    </div>
    ${tab === "messages" && html`<${Messages} open=${open} />`}${
      tab === "policy" && open.url && html`<${Policy} open=${open} allowed=${allowed} setAllowed=${setAllowed} />`
    }${tab === "result" && open.url && html`<${Result} open=${open} />`}
    ${
      shown &&
      html`<div class="bar no-m">
        <${Button}
          onClick=${() => {
            setTab("view");
            enter();
          }}
          >Enter<//
        ><${Button} aria-pressed=${String(whole)} onClick=${() => bridged?.display(whole ? "inline" : "fullscreen")}
          >${whole ? "Inline" : "Full size"}<//
        ><span class="grow"></span><span class="tiny faint num">${open.era}, ${duration(open.ms)}</span>
      </div>`
    }
    <div class="vh" role="status" aria-live="polite">
      ${shown ? `The view of ${open.tool} is shown.` : open.state === "stopped" ? "The view was stopped." : ""}
    </div><//
  >`;
}
