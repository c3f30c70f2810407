// One message: itself, its answer, the same one in the other era, its headers.
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app, go, toast, useStore } from "../../store.js";
import { bytes, clock, cut, duration, number, plural } from "../../format.js";
import { Button, Chip, Copy, Segments, Tabs } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { Empty, ErrorNote, Loading, Note } from "../../parts/notes.js";
import { Waterfall } from "../../parts/waterfall.js";
import { useKeys } from "../../keys.js";
import { ERA } from "./rows.js";
import { Confirmation } from "./confirmation.js";
import { wire } from "./model.js";
import { StateTab } from "./state.js";

const ERAS = [
  ["handshake", "Handshake"],
  ["stateless", "Stateless"],
];
const KEPT = "defserve.panes.wire";
const LOWEST = 120;
const LONG = 200000; // characters: more are not laid out

// What a verb says about a message; the last answer stays while the next is on its way.
function useAnswer(verb, seq, turn) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    let here = true;
    ask(verb, { seq }).then(
      found => here && setAnswer({ verb, seq, found }),
      error => here && setAnswer({ verb, seq, error }),
    );
    return () => {
      here = false;
    };
  }, [verb, seq, turn]);
  return answer?.verb === verb && (answer.seq === seq || answer.found) ? answer : null;
}

const text = value => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function Body({ message, label, raw }) {
  if (message.body === undefined)
    return html`<p class="dim p12">Only this line is left of the message: its body is no longer kept.</p>`;
  const long = message.size > LONG;
  const plain =
    raw || long || typeof message.body === "string"
      ? typeof message.body === "string"
        ? message.body
        : JSON.stringify(message.body)
      : null;
  return html`${
    message.cut &&
    html`<${Note} tone="warn" fact="This message is cut."
      >The first ${bytes(message.cut)} of ${bytes(message.size)} are kept.<//
    >`
  }
  ${
    long &&
    html`<${Note} fact=${`This message has ${bytes(message.size)}.`}>Its beginning is shown; Copy gives all of it.<//>`
  }
  ${
    plain !== null
      ? html`<pre class="json wraps" tabindex="0" role="region" aria-label=${label}>${cut(plain, LONG / 4)}</pre>`
      : html`<${Json} value=${message.body} label=${label} />`
  }`;
}

function Facts({ message }) {
  return html`<span class="row small dim wfacts"
    ><span class=${`sq ${ERA[message.era] ?? ""}`}></span>${message.era}, ${message.direction} at${" "}
    ${clock(message.time)}<span class="num">${bytes(message.size)}</span>
    ${message.ms !== undefined && html`<span class="num">${duration(message.ms)}</span>`}</span
  >`;
}

function MessageTab({ found }) {
  const [raw, setRaw] = useState("indented");
  return html`<div class="body">
    <div class="row wrap wfacts-row">
      <${Facts} message=${found} /><span class="grow"></span>
      <${Segments}
        label="How it is shown"
        options=${[
          ["indented", "Indented"],
          ["raw", "Raw"],
        ]}
        value=${raw}
        onChange=${setRaw}
      />
      <${Copy} text=${() => text(found.body)} label="Copy this message">Copy<//>
    </div>
    <${Body} message=${found} label="Message" raw=${raw === "raw"} />
  </div>`;
}

function PairTab({ found, onShow }) {
  const other = found.other;
  const [request, answer] =
    found.kind === "request"
      ? [found, other]
      : other?.kind === "request"
        ? [other, found.kind === "answer" ? found : null]
        : [found, null];
  const notices = found.others.filter(each => each.kind === "notice");
  const side = (message, title, empty) =>
    html`<div class="p12">
      <div class="row">
        <h2>${title}</h2>
        ${message && html`<${Facts} message=${message} />`}<span class="grow"></span>
        ${message && html`<${Copy} text=${() => text(message.body)} label=${`Copy the ${title.toLowerCase()}`} />`}
      </div>
      ${message ? html`<${Body} message=${message} label=${title} />` : html`<p class="dim">${empty}</p>`}
    </div>`;
  return html`<div class="eras pairs">
    ${side(request, request.kind === "request" ? "Request" : "Notice", "")}
    <div>
      ${side(
        answer,
        "Answer",
        request.kind !== "request"
          ? "A notice has no answer."
          : request.note === "cancelled"
            ? "It was cancelled."
            : "No answer yet.",
      )}
      ${
        notices.length > 0 &&
        html`<div class="p12">
          <h3>${plural(notices.length, "notice")} in between</h3>
          ${notices
            .slice(0, 50)
            .map(
              each =>
                html`<button type="button" class="noticeline" key=${each.seq} onClick=${() => onShow(each.seq)}>
                  <span class="num faint">${duration((each.time - request.time) * 1000)}</span
                  ><code>${each.method}</code><span class="cut">${each.about}</span>
                </button>`,
            )}
        </div>`
      }
    </div>
  </div>`;
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(-?\d[\d.eE+-]*|true|false|null)\b/g;

// A line of JSON, coloured. The host made it; it is text all the same.
function coloured(line) {
  const pieces = [];
  let at = 0;
  for (const found of line.matchAll(TOKEN)) {
    pieces.push(line.slice(at, found.index));
    pieces.push(
      found[1]
        ? html`<span class=${found[2] ? "p" : "s"}>${found[1]}</span>${found[2] ?? ""}`
        : html`<span class="v">${found[0]}</span>`,
    );
    at = found.index + found[0].length;
  }
  return [...pieces, line.slice(at)];
}

const Lines = ({ rows, side, era, label, isJson }) =>
  html`<code class="code json" tabindex="0" role="region" aria-label=${`${label}, ${era}`}
    >${rows.map((row, at) =>
      typeof row === "number"
        ? html`<span class="l skipped" key=${at}>${plural(row, "line")} alike</span>`
        : html`<span key=${at} class=${`l ${row[side] === null ? "gapl" : row[2] ? `dd ${ERA[era]}` : ""}`}
            >${row[side] === null ? " " : isJson(row[side]) ? coloured(row[side]) : row[side]}</span
          >`,
    )}</code
  >`;

const isHeader = line => /^[a-z][\w-]*: |^[A-Z]+ http/.test(line);

function ErasTab({ answer, onAgain, busy }) {
  const connections = useStore(app, state => state.connections);
  const found = answer.found;
  const copy = async era => {
    const { body, other } = await ask("wire.message", { seq: found[era].seq });
    return [body, other?.body]
      .filter(each => each !== undefined)
      .map(text)
      .join("\n");
  };
  return html`<div class="eras" tabindex="0" role="region" aria-label="Both eras">
    ${ERAS.map(
      ([era, title], side) =>
        html`<div key=${era}>
          <div class="row erahead">
            <span class=${`sq ${ERA[era]}`}></span>
            <h2>${title}</h2>
            <span class="faint small">${connections[era]?.speaks?.find(([name]) => name === "MCP")?.[1] ?? ""}</span
            ><span class="grow"></span>
            ${
              found[era] &&
              html`<span class="tiny dim num">${number(found[era].size)} B</span
                >${found[era].ms != null && html`<span class="tiny dim num">${duration(found[era].ms)}</span>`}<${Copy}
                  text=${() => copy(era)}
                  label=${`Copy the ${era} side`}
                />`
            }
          </div>
          ${
            found[era]
              ? html`<${Lines}
                    rows=${found.lines}
                    side=${side}
                    era=${era}
                    label="Request"
                    isJson=${line => !isHeader(line)}
                  />
                  ${
                    found.answers.length > 0 &&
                    html`<h3 class="answerhead">Answer</h3>
                      <${Lines} rows=${found.answers} side=${side} era=${era} label="Answer" isJson=${() => true} />`
                  }`
              : html`<${Empty}
                  icon="swap"
                  title=${`It was never sent in the ${era} era`}
                  action=${
                    !found.again &&
                    html`<${Button} icon="repeat" busy=${busy} onClick=${onAgain}>Send again in both<//>`
                  }
                  >${found.again}<//
                >`
          }
        </div>`,
    )}
  </div>`;
}

function HeadersTab({ found }) {
  const carrier = found.exchange ? found : found.other?.exchange ? found.other : null;
  if (!carrier)
    return html`<div class="body">
      <${Empty} icon="page" title="No headers"
        >This message went over a pipe, or came inside of a stream: only HTTP requests have headers.<//
      >
    </div>`;
  const { method, address, status, headers, answered } = carrier.exchange;
  const table = (title, line, all) =>
    html`<div class="p12">
      <div class="row">
        <h2>${title}</h2>
        <code class="dim cut">${line}</code><span class="grow"></span>
        <${Copy}
          text=${() =>
            Object.entries(all)
              .map(([name, value]) => `${name}: ${value}`)
              .join("\n")}
          label=${`Copy the headers of the ${title.toLowerCase()}`}
        />
      </div>
      <table class="headers">
        <tbody>
          ${Object.entries(all).map(
            ([name, value]) =>
              html`<tr key=${name}>
                <th scope="row" class="mono">${name}</th>
                <td class="mono">${value}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>`;
  return html`<div class="eras">
    ${table("Request", `${method} ${address}`, headers)}${table("Response", status, answered)}
  </div>`;
}

// The line above the drawer can be dragged, or moved with arrow keys, and is remembered.
const usual = () => Math.max(LOWEST, Math.round(innerHeight * 0.42));

function useHeight() {
  const [height, setHeight] = useState(() => Number(localStorage.getItem(KEPT)) || usual());
  const move = by =>
    setHeight(before => {
      const next = Math.max(LOWEST, Math.min(innerHeight - 300, before + by));
      localStorage.setItem(KEPT, String(next));
      return next;
    });
  const line = html`<div
    class="hline"
    role="separator"
    aria-orientation="horizontal"
    aria-label="Height of the drawer"
    aria-valuenow=${height}
    tabindex="0"
    onDblClick=${() => move(usual() - height)}
    onKeyDown=${event => {
      const by = { ArrowUp: 16, ArrowDown: -16 }[event.key];
      if (by) {
        event.preventDefault();
        move(by);
      }
    }}
    onPointerDown=${event => {
      let last = event.clientY;
      const own = event.currentTarget;
      own.setPointerCapture(event.pointerId);
      own.onpointermove = moved => {
        move(last - moved.clientY);
        last = moved.clientY;
      };
      own.onpointerup = () => {
        own.onpointermove = own.onpointerup = null;
      };
    }}
  ></div>`;
  return [height, line];
}

export function MessageDrawer({ seq, onClose, onShow }) {
  const tab = useStore(wire, state => state.tab);
  const [busy, setBusy] = useState(false);
  const [turn, setTurn] = useState(0);
  const [asking, setAsking] = useState(null);
  const messages = useStore(wire, state => state.messages);
  const answer = useAnswer("wire.message", seq, turn);
  // An open request is looked at again when something came; what is complete stays.
  const open = answer?.found && answer.found.kind === "request" && answer.found.of === undefined;
  const seen = useRef(0);
  useEffect(() => {
    if (open && seen.current !== messages) {
      seen.current = messages;
      setTurn(now => now + 1);
    }
  }, [messages, open]);
  const eras = useAnswer("wire.eras", seq, turn);
  const [height, line] = useHeight();
  useKeys({ escape: () => onClose() });
  const again = async confirmed => {
    setAsking(null);
    setBusy(true);
    try {
      const told = await ask("wire.again", { seq, confirmed });
      if (told.confirm) {
        setAsking(told.confirm);
        return;
      }
      for (const [era, error] of Object.entries(told.errors))
        toast(`The ${era} era could not do it: ${error.message}`, "bad");
      wire.set({ tab: "eras" });
      setTurn(now => now + 1);
      const own =
        told.sent[eras?.found?.handshake?.seq === seq ? "handshake" : "stateless"] ?? Object.values(told.sent)[0];
      if (own !== undefined) onShow(own);
    } catch (error) {
      if (!error.cancelled) toast(error.message, "bad");
    } finally {
      setBusy(false);
    }
  };
  const found = answer?.found;
  const differences = eras?.found?.differences;
  // The call that a message belongs to, if it has a state.
  const call = [found, found?.other].find(each => each?.kind === "request" && each.checkpoint);
  const trace = found?.trace ?? found?.other?.trace;
  const shortId = String(found?.id).slice(0, 8);
  const waterfall = found?.waterfall ?? found?.other?.waterfall;
  const missing = (tab === "state" && !call) || (tab === "waterfall" && !waterfall);
  const shown = found && missing ? "pair" : tab;
  const tabs = [
    ["message", "Message"],
    ["pair", html`Request and answer`],
    ...(waterfall ? [["waterfall", "Waterfall"]] : []),
    ...(call ? [["state", "State"]] : []),
    ["eras", html`Both eras ${differences != null && html`<${Chip}>${plural(differences, "difference")}<//>`}`],
    ["headers", "Headers"],
  ];
  return html`<section class="pane drawer wdrawer" aria-label="The message in view" style=${{ height: `${height}px` }}>
    ${line}
    <h2 class="vh">${found?.method || "Message"} ${found?.about}</h2>
    <${Tabs} label="Message" tabs=${tabs} value=${shown} onChange=${next => wire.set({ tab: next })} class="dtabs">
      ${
        found &&
        html`<span class="small dim cut no-m"><b class="mono">${found.method || "answer"}</b> ${found.about}</span>`
      }
      ${
        found?.id !== undefined &&
        html`<${Copy} text=${() => String(found.id)} label=${`Copy the id ${shortId}`} class="w-wide">id ${shortId}<//>`
      }
      ${
        found?.method === "tools/call" &&
        html`<${Button} small plain icon="tool" class="no-m" onClick=${() => go("tools", found.about)}>Tool<//>`
      }
      ${
        trace &&
        html`<${Button} small plain icon="shield" class="no-m" onClick=${() => go("security", trace)}>Audit<//>`
      }
      <${Button}
        small
        icon="repeat"
        busy=${busy}
        reason=${eras?.found?.again}
        label="Send again in both"
        onClick=${() => again(false)}
        ><span class="w-wide">Send again in both</span><//
      >
      <${Button} small plain icon="close" label="Close" onClick=${onClose}
    /><//>
    ${
      answer?.error
        ? html`<div class="body"><${ErrorNote} error=${answer.error} onRetry=${() => setTurn(turn + 1)} /></div>`
        : !found
          ? html`<${Loading} />`
          : shown === "message"
            ? html`<${MessageTab} found=${found} />`
            : shown === "pair"
              ? html`<${PairTab} found=${found} onShow=${onShow} />`
              : shown === "state"
                ? html`<${StateTab} call=${call} onShow=${onShow} />`
                : shown === "waterfall"
                  ? html`<div class="body" tabindex="0" role="region" aria-label="Waterfall">
                      <${Waterfall} of=${waterfall} />
                    </div>`
                  : shown === "headers"
                    ? html`<${HeadersTab} found=${found} />`
                    : eras?.error
                      ? html`<div class="body"><${ErrorNote} error=${eras.error} /></div>`
                      : !eras
                        ? html`<${Loading} />`
                        : html`<${ErasTab} answer=${eras} onAgain=${() => again(false)} busy=${busy} />`
    }
    ${
      asking &&
      html`<${Confirmation}
        about=${asking}
        title=${`Send ${asking.tool ?? asking.method} again, in both eras?`}
        words="It will run twice, once in each era, with the same arguments."
        yes="Send twice"
        onYes=${() => again(true)}
        onNo=${() => setAsking(null)}
      />`
    }
  </section>`;
}
