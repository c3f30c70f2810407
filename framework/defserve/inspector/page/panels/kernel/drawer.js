// One server: its restarts against their limit, its log, what is held, and what can be done with it.
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app } from "../../store.js";
import { clock, number, plural } from "../../format.js";
import { useKeys } from "../../keys.js";
import { Button, Chip, Copy } from "../../parts/controls.js";
import { ErrorNote } from "../../parts/notes.js";
import { Pane } from "../../parts/panes.js";
import { command, run, runs, spansOf } from "./model.js";
import { State } from "./rows.js";

const MOST_LINES = 500;
const ACCEPT = "pins accept";

function useLog(id) {
  const [lines, setLines] = useState([]);
  useEffect(() => {
    let here = true,
      kept = [],
      timer = 0;
    // Lines come one by one; they are drawn together.
    const show = () => {
      timer = 0;
      if (here) setLines(kept);
    };
    const asked = ask("kernel.logs", { era: app.get().era, server: id }, line => {
      kept = [...kept.slice(1 - MOST_LINES), line];
      timer ||= setTimeout(show, 60);
    });
    asked.catch(() => {});
    return () => {
      here = false;
      clearTimeout(timer);
      asked.cancel();
    };
  }, [id]);
  return lines;
}

const KINDS = { state: ["kernel", ""], stderr: ["stderr", "faint"], problem: ["problem", "bad"], note: ["", "faint"] };
const GOOD = new Set(["connected"]);

function Log({ lines }) {
  const end = useRef(null),
    follows = useRef(true);
  useEffect(() => {
    if (follows.current && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [lines]);
  const onScroll = ({ currentTarget: box }) => {
    follows.current = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
  };
  return html`<div class="body klog" tabindex="0" role="region" aria-label="Log" ref=${end} onScroll=${onScroll}>
    ${
      lines.length
        ? lines.map((line, at) => {
            const [who, tone] = KINDS[line.kind] ?? [line.kind, ""];
            return html`<div class="kline" key=${at}>
              <span class="ts">${line.time ? clock(Date.parse(line.time) / 1000, false) : ""}</span
              ><span class=${tone}>${who}</span
              ><span class=${/→ (error|restarting|disconnected):/.test(line.text) && line.kind === "state" ? "bad" : ""}
                >${line.text}</span
              >
            </div>`;
          })
        : html`<p class="dim">No lines yet.</p>`
    }
  </div>`;
}

function Restarts({ row, lines }) {
  const {
    strategy,
    window_secs: seconds,
    backoff_secs: [least, most],
  } = row.restart;
  const { spans, ends } = spansOf(lines, seconds, row.state);
  const limit = row.max_restarts,
    minutes = plural(Math.round(seconds / 60), "minute");
  return html`<div class="krestarts">
    <div class="row small wrap">
      <span class="grow"
        ><b
          >${
            limit == null
              ? plural(row.recent_restarts, "restart")
              : `${row.recent_restarts} of ${plural(limit, "restart")}`
          }</b
        >${" "}
        <span class="dim"
          >in the last ${minutes}.${limit == null ? "" : " After that, the kernel gives up."}</span
        ></span
      >
      <span class="faint tiny">policy ${strategy}, back-off ${number(least)} to ${number(most)} s</span>
    </div>
    <svg
      class="kbar"
      viewBox="0 0 1000 8"
      preserveAspectRatio="none"
      role="img"
      aria-label=${`Restarts in the last ${minutes}: ${row.recent_restarts}`}
    >
      <rect class="gap" width="1000" height="8" />
      ${spans.map(
        ([from, to, state], at) =>
          GOOD.has(state) &&
          html`<rect key=${at} class="up" x=${from * 1000} width=${(to - from) * 1000} height="8" />`,
      )}
      ${ends.map(end => html`<rect key=${end} class="end" x=${Math.min(994, end * 1000)} width="6" height="8" />`)}
    </svg>
    <div class="row tiny faint"><span>${minutes} ago</span><span class="grow"></span><span>now</span></div>
  </div>`;
}

// What is held. It is looked at again after a failure: a tool may have changed since.
function useHeld(row, failed) {
  const [found, setFound] = useState({});
  const names = (row.held ?? []).join("\n");
  useEffect(() => {
    let here = true;
    if (names)
      ask("kernel.held", { era: app.get().era, server: row.id }).then(
        held => here && setFound({ held }),
        error => here && setFound({ error }),
      );
    return () => {
      here = false;
    };
  }, [row.id, names, failed]);
  return found;
}

const accept = (row, one, more = {}) => run(ACCEPT, row.id, { tool: one.tool, digest: one.now, ...more });

// What is not shown whole is not accepted with the rest.
async function acceptAll(row, held) {
  for (const one of held) if (!one.left_out && (await accept(row, one)) === null) return;
}

// A definition that is too long to be shown needs a second, explicit word.
function Accept({ row, one, busy }) {
  const [asked, setAsked] = useState("");
  const isAsked = asked === one.now;
  if (!one.left_out) return html`<${Button} small busy=${busy} onClick=${() => accept(row, one)}>Accept<//>`;
  return html`<${Button}
    small
    busy=${busy}
    onClick=${() => (isAsked ? accept(row, one, { unseen: true }) : setAsked(one.now))}
    >${isAsked ? `Accept ${plural(one.left_out, "line")} unseen` : "Accept…"}<//
  >`;
}

function Held({ row, held, error, told, busy }) {
  const tone = line =>
    line.startsWith("+") ? "ins" : line.startsWith("-") ? "del" : line.startsWith("@") ? "faint" : "";
  return html`<div class="body flush">
    ${error && html`<div class="pad"><${ErrorNote} error=${error} /></div>`}${(held ?? []).map(
      one =>
        html`<section class="kheld" key=${one.tool} aria-label=${one.tool}>
          <div class="row">
            <b class="mono cut grow" title=${one.tool}>${one.tool}</b><${Chip} tone="warn">${one.change}<//
            ><${Accept} row=${row} one=${one} busy=${busy === ACCEPT} /><${Copy}
              label="Copy the command"
              text=${command(told, ACCEPT, row.id, one.tool, "--digest", one.now)}
            />
          </div>
          <pre class="kdiff mono" tabindex="0" aria-label=${`What has changed in ${one.tool}`}>
${one.difference
              .filter(line => !/^(---|\+\+\+) /.test(line))
              .map((line, at) => html`<span key=${at} class=${tone(line)}>${line}${"\n"}</span>`)}</pre>
        </section>`,
    )}
  </div>`;
}

const Fact = ({ name, children }) =>
  html`<dt>${name}</dt>
    <dd>${children}</dd>`;

function Facts({ row }) {
  const underWay = row.calls ? `, ${number(row.calls)} under way` : "";
  const broken = row.errors_total ? `, ${number(row.errors_total)} failed` : "";
  const calls = row.calls_total == null ? null : `${number(row.calls_total)}${underWay}${broken}`;
  return html`<div class="body">
    <dl class="kfacts">
      ${
        row.where && html`<${Fact} name="where"><code class="wraps">${row.where}</code><//>`
      }${row.name && html`<${Fact} name="name">${row.name}<//>`}${
        row.pid && html`<${Fact} name="process"><span class="mono">${row.pid}</span><//>`
      }
      ${row.era && html`<${Fact} name="era">${row.era}<//>`}${
        row.prefix && html`<${Fact} name="prefix"><code>${row.prefix}</code><//>`
      }${calls && html`<${Fact} name="calls">${calls}<//>`}${
        row.health && html`<${Fact} name="health">${row.health}<//>`
      }
      ${row.trust_level && html`<${Fact} name="trust level">${row.trust_level}<//>`}${
        row.created_by && html`<${Fact} name="registered by">${row.created_by}<//>`
      }
    </dl>
    ${row.note && html`<pre class="knote wraps" tabindex="0" aria-label="Last words">${row.note}</pre>`}
  </div>`;
}

export function Drawer({ row, told, busy, failed, onClose }) {
  const lines = useLog(row.id),
    { verbs } = told,
    held = row.held?.length > 0,
    found = useHeld(row, failed);
  useKeys({ escape: () => onClose() });
  const act = (verb, icon, words) =>
    verbs.includes(verb) &&
    html`<${Button}
      small
      icon=${icon}
      busy=${busy === verb}
      reason=${busy && busy !== verb ? "Something else is being done" : null}
      onClick=${() => run(verb, row.id)}
      >${words}<//
    >`;
  const main = runs(row)
    ? html`${act("restart", "repeat", "Restart")}${act("stop", "stop", "Stop")}`
    : act(verbs.includes("start") ? "start" : "restart", "play", "Start");
  const usual = runs(row) ? "restart" : "start";
  return html`<div class="kdrawer">
    <${Pane} label=${row.id}
      ><div class="head">
        <span class="only-m"><${Button} icon="left" plain label="Back to the backends" onClick=${onClose} /></span
        ><b class="mono cut">${row.id}</b><${State} row=${row} /><span class="grow"></span>${main}
        ${
          verbs.includes(usual) &&
          told.way === "control" &&
          html`<span class="no-m"><${Copy} label="Copy as a command" text=${command(told, usual, row.id)} /></span>`
        }<span class="no-m"><${Button} icon="close" plain small label="Close" onClick=${onClose} /></span>
      </div>
      ${failed && html`<div class="pad"><${ErrorNote} error=${failed} /></div>`}
      ${row.restart && html`<${Restarts} row=${row} lines=${lines} />`}<${Log} lines=${lines} key=${row.id}
    /><//>
    <${Pane} label=${held ? "Held" : "Facts"}
      ><div class="head">
        <h2 class="nowrap">${held ? `${plural(row.held.length, "definition")} held` : "Facts"}</h2>
        ${
          held &&
          html`<span class="dim small cut kwide">changed since pinned</span><span class="grow"></span>
            <${Button}
              small
              onClick=${() => acceptAll(row, found.held)}
              busy=${busy === ACCEPT}
              reason=${found.held ? null : "They are not shown yet"}
              >Accept all<//
            >`
        }
      </div>
      ${held ? html`<${Held} row=${row} ...${found} told=${told} busy=${busy} />` : html`<${Facts} row=${row} />`}<//
    >
  </div>`;
}
