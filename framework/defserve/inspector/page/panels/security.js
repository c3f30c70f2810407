// Security: what the server may use, the layers of the latest call, who may use what, and what was written down.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ask, on } from "../socket.js";
import { app, connection, createStore, go, useStore } from "../store.js";
import { useKeys } from "../keys.js";
import { clock, duration, number, plural } from "../format.js";
import { Button, Chip, Segments } from "../parts/controls.js";
import { Mark } from "../parts/icons.js";
import { ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Access } from "./security/access.js";
import { Audit } from "./security/audit.js";
import { Events } from "./security/events.js";
import { Layers } from "./security/layers.js";
import { Why } from "./security/why.js";

const state = createStore({ told: null, audit: null, error: null });
const SAY = [
  ["grant", "Grant", "yes"],
  ["ask", "Ask"],
  ["deny", "Deny", "no"],
];
const STATES = { connected: "ok", draining: "warn", disconnected: "bad", error: "bad" };
const OUTCOMES = {
  approved: ["granted", "ok"],
  denied: ["denied by you", "bad"],
  deferred: ["asked with the next call", "dim"],
};

// One answer of the host at a time; what was asked for before counts no more.
let newest = 0;
async function take(verb, args = {}) {
  const mine = ++newest,
    { era } = app.get();
  try {
    const told = await ask(verb, { era, ...args });
    if (mine === newest) state.set({ told: { ...told, era }, error: null });
  } catch (error) {
    if (mine === newest) state.set({ error });
  }
}

function useAudit(isOpen) {
  const waiting = useRef(0);
  useEffect(() => {
    if (!isOpen) return undefined;
    const look = () => {
      waiting.current = 0;
      ask("security.audit").then(
        audit => state.set({ audit }),
        error => state.set({ audit: { seen: [], log: null, error } }),
      );
    };
    const soon = () => {
      waiting.current ||= setTimeout(look, 300);
    };
    look();
    const ends = [
      on("audit", soon),
      on("permissions", () => take("security.overview")),
      on("lifecycle", row =>
        state.set(({ told }) => (told ? { told: { ...told, lifecycle: [row, ...told.lifecycle].slice(0, 50) } } : {})),
      ),
    ];
    return () => {
      ends.forEach(end => end());
      clearTimeout(waiting.current);
      waiting.current = 0;
    };
  }, [isOpen]);
}

function Permissions({ told }) {
  if (!told.permissions.length)
    return html`<p class="pad dim">No tool of this server says that it needs a permission.</p>`;
  return html`<div class="scrolls">
    <table class="perms">
      <thead>
        <tr>
          <th class="first"><span class="vh">risk</span></th>
          <th>permission</th>
          <th>needed by</th>
          <th>your answer</th>
          <th class="last">result</th>
        </tr>
      </thead>
      <tbody>
        ${told.permissions.map(each => {
          const [words, tone] = OUTCOMES[each.decision] ?? [each.decision, "dim"];
          return html`<tr key=${each.name}>
            <td class="first"><${Mark} risk=${each.risk} /></td>
            <td class="mono name">${each.name}</td>
            <td class="dim tools">
              ${
                each.tools.length
                  ? each.tools
                      .slice(0, 3)
                      .map(
                        (tool, at) =>
                          html`${at > 0 && ", "}<button
                              type="button"
                              class="plainlink"
                              key=${tool}
                              onClick=${() => go("tools", tool)}
                            >
                              ${tool}
                            </button>`,
                      )
                  : "no tool here"
              }
              ${each.tools.length > 3 && ` and ${number(each.tools.length - 3)} more`}
            </td>
            <td>
              <${Segments}
                label=${`Your answer for ${each.name}`}
                options=${SAY}
                value=${each.say}
                onChange=${say => take("security.permit", { permission: each.name, say })}
              />
            </td>
            <td class=${`last nowrap ${tone}`}>${words}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

// How the server does. It is asked when this is opened, and by the button.
function Health({ told }) {
  const [health, setHealth] = useState(null);
  const [busy, setBusy] = useState(false);
  const look = async () => {
    setBusy(true);
    setHealth(await ask("security.health", { era: told.era }).catch(error => ({ error })));
    setBusy(false);
  };
  const can = told.sections.includes("lifecycle");
  useEffect(() => {
    if (can) look();
  }, [told.era, can]);
  const tone = { healthy: "ok", degraded: "warn", unhealthy: "bad" }[health?.status];
  const checks = Object.entries(health?.checks ?? {});
  return html`<div class="head">
      <h2>Health</h2>
      ${health?.status && html`<${Chip} tone=${tone}>${health.status}<//>`}<span class="grow"></span
      >${can && html`<${Button} small icon="repeat" busy=${busy} onClick=${look}>Ask<//>`}
    </div>
    <div class="pad small">
      ${
        !can
          ? html`<p class="dim">This server does not report its health.</p>`
          : health?.error
            ? html`<${ErrorNote} error=${health.error} />`
            : health &&
              html`<p class="dim num">
                  Up for ${duration(health.uptime_secs * 1000)}, ${plural(health.tools_available, "tool")} of${" "}
                  ${number(health.tools_total)} available, ${plural(health.pending_requests, "call")} under way.
                </p>
                ${
                  told.lifecycle.length > 0 &&
                  html`<ul class="states small">
                    ${told.lifecycle.map(
                      each =>
                        html`<li key=${`${each.at} ${each.new_state}`}>
                          <span class="num faint">${clock(each.at, false)}</span
                          ><${Chip} tone=${STATES[each.new_state]}>${each.new_state}<//
                          ><span class="dim cut"
                            >${[
                              each.previous_state && `was ${each.previous_state}`,
                              each.reason?.replaceAll("_", " "),
                              each.era,
                            ]
                              .filter(Boolean)
                              .join(", ")}</span
                          >
                        </li>`,
                    )}
                  </ul>`
                }
                ${checks.map(
                  ([name, passed]) =>
                    html`<p key=${name}>
                      <span class=${passed ? "ok" : "bad"}>${passed ? "passes" : "fails"}</span>${" "}
                      <code>${name}</code>${" "}
                      <span class="dim">${health.problems[name] ?? ""}</span>
                    </p>`,
                )}`
      }
    </div>`;
}

function Panel() {
  const era = useStore(app, each => each.era);
  const isOpen = useStore(app, each => each.socket === "open" && connection(each)?.state === "open");
  const { told, audit, error } = useStore(state);
  const [show, setShow] = useState("");
  const verify = useRef(null);
  useEffect(() => {
    if (isOpen) take("security.overview");
  }, [era, isOpen]);
  useAudit(isOpen);
  useKeys({
    v: () => verify.current?.(),
    escape: () => {
      if (!show) return false;
      setShow("");
      return true;
    },
  });
  const here = told?.era === era ? told : null;
  const said = here?.permissions.filter(each => each.say !== "ask").length ?? 0;
  const left = html`<${Pane} label="Permissions and access" class="sec-left"
    ><div class="head">
      <h2>Permissions</h2>
      <span class="dim small cut no-m">What you choose here lasts until the inspector ends.</span
      ><span class="grow"></span>
      <span class="only-m"><${Button} small after="right" onClick=${() => setShow("show-audit")}>Audit<//></span>
      <${Button} small reason=${said ? null : "You have said nothing yet"} onClick=${() => take("security.reset")}
        >Reset all<//
      >
    </div>
    <div class="body flush">
      ${
        error && html`<div class="pad"><${ErrorNote} error=${error} onRetry=${() => take("security.overview")} /></div>`
      }
      ${
        !here
          ? !error && html`<${Loading} rows=${5} />`
          : html`${
                !here.version &&
                html`<p class="pad dim">
                  This server does not speak MGP. What you choose here is kept by the inspector, before a call is sent.
                </p>`
              }<${Permissions} told=${here} /><${Layers} seen=${audit?.seen ?? []} log=${audit?.log} />
              ${here.explains && html`<${Why} />`}<${Access} told=${here} /><${Health} told=${here} /><${Events}
                told=${here}
              />`
      }
    </div><//
  >`;
  const right = html`<${Pane} label="Audit" class="sec-audit"
    ><${Audit} audit=${audit} verifyRef=${verify} onBack=${() => setShow("")}
  /><//>`;
  return html`<${Panes} id="security" class="p-sec" title="Security" show=${show}>${left}${right}<//>`;
}

export const securityPanel = {
  id: "security",
  title: "Security",
  group: "Extensions",
  icon: "shield",
  key: "e",
  keys: [["V", "verify the audit chain"]],
  Panel,
};
