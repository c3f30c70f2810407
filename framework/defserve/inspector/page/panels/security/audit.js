// What was written down: the chain of the server's log with its verdict, or what this inspector saw.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app, go, useStore } from "../../store.js";
import { age, clock, duration, number, plural, quoted } from "../../format.js";
import { Button, Copy, Segments } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { Empty, ErrorNote, Loading, Note } from "../../parts/notes.js";
import { VirtualList } from "../../parts/lists.js";
import { saveFile } from "../../parts/content.js";

const HEIGHT = 34;
const ELSEWHERE =
  " The server runs elsewhere. MGP has no request that checks a chain, so that is done beside the log: " +
  "defserve audit verify FILE.";
const UNCHAINED = ' A server that runs from its file with Server(audit="audit.jsonl") shows its chain here.';
const RESULTS = {
  SUCCESS: "ok",
  success: "ok",
  FAILURE: "bad",
  failure: "bad",
  DENIED: "bad",
  BLOCKED: "bad",
  refused: "bad",
  timeout: "bad",
  CANCELLED: "warn",
  RETRY: "warn",
};
const WORDS = {
  SUCCESS: "done",
  FAILURE: "failed",
  DENIED: "denied",
  BLOCKED: "blocked",
  CANCELLED: "cancelled",
  RETRY: "again",
  STARTED: "began",
};

// A row of either source.
const rowOf = (event, more) => ({
  event,
  type: String(event?.event_type ?? event?.method ?? event?.type ?? ""),
  about: String(
    event?.target?.tool_name ?? event?.featureSet ?? event?.details?.permissions ?? event?.details?.agent_id ?? "",
  ),
  result: String(event?.result ?? event?.outcome ?? ""),
  by: event?.reported_by ? "server says" : "",
  ...more,
});
const rowsOf = (audit, source) =>
  source === "log"
    ? audit.log.lines.map(line => rowOf(line.event, { line: line.line, type: line.type, mac: line.mac, odd: line.odd }))
    : audit.seen.map((event, at) => rowOf(event, { line: audit.seen.length - at }));

// A link of the chain. After the cut everything is grey.
function Link({ tone, first, cut, chained }) {
  return html`<svg class=${`link ${tone}`} width="20" height=${HEIGHT} viewBox=${`0 0 20 ${HEIGHT}`} aria-hidden="true">
    ${
      chained && html`<path d=${cut ? `M10 ${first ? 12 : 0}V9M10 26V${HEIGHT}` : `M10 ${first ? 12 : 0}V${HEIGHT}`} />`
    }
    ${cut ? html`<path class="x" d="m6 13 8 8M14 13l-8 8" />` : html`<circle cx="10" cy="17" r="4.5" />`}
  </svg>`;
}

function Verdict({ verdict, error }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick(count => count + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!verdict) return html`<${Note} fact="Not checked yet.">Verify reads the whole log and checks every link.<//>`;
  const checked = `Checked ${age(verdict.at)} ago in ${duration(verdict.ms)}.`;
  if (!verdict.ok)
    return html`<${Note}
      tone="bad"
      role="alert"
      fact=${`The chain is broken${verdict.first_bad_line ? ` at line ${number(verdict.first_bad_line)}` : ""}.`}
      >${sentence(verdict.reason)} ${plural(verdict.events, "event")} before it are whole. ${checked}
      <p class="fix">
        <b>fix:</b> keep the file as evidence; put back a copy that is intact, or begin a log with another name
      </p><//
    >`;
  return html`<${Note} tone="ok" fact="The chain is whole."
    >${plural(verdict.events, "event")}.${" "}
    ${checked}${verdict.unsigned > 0 && ` ${plural(verdict.unsigned, "event")} after the last signed head.`}${
      verdict.lost > 0 &&
      ` ${plural(verdict.lost, "event")} could not be written when they happened; the log says so itself.`
    }<//
  >`;
}

const sentence = said => (!said ? "" : said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : "."));

export function Audit({ audit, verifyRef, onBack }) {
  const [verdict, setVerdict] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [wanted, setSource] = useState("log");
  const [open, setOpen] = useState(null); // the line whose event is shown
  const source = audit?.log ? wanted : "seen";
  const verify = async () => {
    setBusy(true);
    setError(null);
    try {
      setVerdict(await ask("security.verify"));
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  verifyRef.current = audit?.log
    ? () => {
        setSource("log");
        verify();
      }
    : null;
  useEffect(() => {
    if (audit?.log) verify();
  }, [!!audit?.log]);
  const rows = audit ? rowsOf(audit, source) : [];
  // An address such as #security/req-… leads to what was written of that call.
  const trace = useStore(app, state => (state.route.panel === "security" ? state.route.rest : ""));
  const named = trace ? rows.find(each => each.event?.trace_id === trace)?.line : undefined;
  useEffect(() => {
    if (named !== undefined) setOpen(named);
  }, [trace, named]);
  const bad = source === "log" && verdict && !verdict.ok ? verdict.first_bad_line : null;
  const at = rows.findIndex(each => each.line === open);
  const row = index => {
    const each = rows[index],
      isCut = bad !== null && each.line === bad,
      isAfter = bad !== null && each.line > bad;
    const tone = isCut ? "bad" : isAfter ? "grey" : (RESULTS[each.result] ?? "");
    return html`<span class="audit" role="gridcell"
      ><${Link} tone=${tone} first=${index === 0} cut=${isCut || each.odd} chained=${source === "log"} /><span
        class="num faint"
        >${number(each.line)}</span
      ><span class="num faint at">${timeOf(each.event)}</span>
      <span class=${`row gap4 cut${isAfter ? " faint" : ""}`}
        ><code class="cut" title=${each.type}>${each.type}</code><span class="dim cut of">${each.about}</span></span
      >
      <span class=${`nowrap ${isAfter ? "faint" : (RESULTS[each.result] ?? "dim")}`}
        >${WORDS[each.result] ?? each.result}</span
      >
      <code class="faint r no-m" title=${each.mac ?? ""}
        >${each.mac ? `${each.mac.slice(0, 4)}…${each.mac.slice(-2)}` : each.by}</code
      ></span
    >`;
  };
  return html`<div class="head">
      <span class="only-m"><${Button} icon="left" plain label="Back to the permissions" onClick=${onBack} /></span>
      <h2 class="nowrap">${source === "log" ? "Audit chain" : "Audit"}</h2>
      <code class="faint cut no-m">${source === "log" ? audit?.log?.name : ""}</code><span class="grow"></span>${
        audit?.log &&
        html`<${Segments}
            label="Which trail"
            options=${[
              ["log", "Server's log"],
              ["seen", "Seen here"],
            ]}
            value=${source}
            onChange=${value => {
              setSource(value);
              setOpen(null);
            }}
          />
          <${Button} small icon="repeat" busy=${busy} keys="V" onClick=${() => verifyRef.current?.()}>Verify<//>`
      }
    </div>
    ${
      !audit
        ? html`<${Loading} rows=${6} />`
        : html`<div class="verdict" role="status" aria-live="polite">
              ${
                source === "log"
                  ? html`<${Verdict} verdict=${verdict} error=${error} />`
                  : audit.error
                    ? html`<${ErrorNote} error=${audit.error} />`
                    : html`<p class="small dim">
                        What this inspector saw, and what the server reported of it. It is kept in memory and not
                        chained.${!audit.log && (audit.remote ? ELSEWHERE : UNCHAINED)}
                      </p>`
              }
            </div>
            ${
              rows.length
                ? html`<${VirtualList}
                    label="Audit events, newest first"
                    count=${rows.length}
                    height=${HEIGHT}
                    row=${row}
                    rowClass=${index => (bad !== null && rows[index].line === bad ? "cutline" : "")}
                    selected=${at < 0 ? null : at}
                    onSelect=${index => setOpen(rows[index].line)}
                  />`
                : html`<${Empty} icon="shield" title="Nothing written yet">Each call leaves its lines here.<//>`
            }
            ${
              at >= 0 &&
              rows[at].event &&
              html`<div class="auditevent">
                <div class="row tiny dim">
                  <span class="grow">${rows[at].mac && html`MAC <code class="cut">${rows[at].mac}</code>`}</span>
                  ${
                    typeof rows[at].event.trace_id === "string" &&
                    html`<${Button}
                      icon="wire"
                      plain
                      small
                      onClick=${() => go("wire", `trace:${rows[at].event.trace_id}`)}
                      >Show on the wire<//
                    >`
                  }
                  <${Button} icon="close" plain small label="Close the event" onClick=${() => setOpen(null)} />
                </div>
                <${Json} value=${rows[at].event} label="Event" copy />
              </div>`
            }
            <div class="bar tiny dim">
              <span class="grow cut">${plural(rows.length, "newest line")} shown.</span>${
                source === "log" &&
                html`<span class="no-m"
                  ><${Copy} text=${`defserve audit verify ${quoted(audit.log.name)}`} label="Copy as command"
                    >Copy as command<//
                  ></span
                >`
              }
              <${Button}
                small
                plain
                icon="save"
                onClick=${() =>
                  saveFile(
                    "audit-events.jsonl",
                    "application/jsonl",
                    rows.map(each => JSON.stringify(each.event)).join("\n") + "\n",
                  )}
                >Export<//
              >
            </div>`
    }`;
}

function timeOf(event) {
  const at = Date.parse(event?.timestamp);
  return Number.isNaN(at) ? "" : clock(at / 1000, false);
}
