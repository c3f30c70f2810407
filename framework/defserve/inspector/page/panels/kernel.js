// Kernel: the servers behind a kernel, how each does, and what an operator does with them.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ask } from "../socket.js";
import { app, connection, go, toast, useStore } from "../store.js";
import { useKeys } from "../keys.js";
import { plural } from "../format.js";
import { Button, Copy, Search, copyText } from "../parts/controls.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Stacked } from "../parts/panes.js";
import { Drawer } from "./kernel/drawer.js";
import { command, needsLook, run, store } from "./kernel/model.js";
import { Rows } from "./kernel/rows.js";

const START = "defserve kernel --config mgp.toml --on http://127.0.0.1:8000/mcp";
const INSPECT = "defserve inspect mgp.toml --web";

const NoKernel = () =>
  html`<${Empty}
    icon="servers"
    title="This server is not a kernel"
    action=${html`<div class="kstart">
      <div class="row"><code class="grow wraps">${START}</code><${Copy} text=${START} /></div>
      <div class="row"><code class="grow wraps">${INSPECT}</code><${Copy} text=${INSPECT} /></div>
    </div>`}
  >
    A kernel runs the servers of an mgp.toml as one server. Start one, and inspect its address or its file.<//
  >`;

// What needs a look is counted, and each count is a filter.
function Counts({ servers, only, onOnly }) {
  const counts = [
    ["well", "ok", "healthy"],
    ["look", "warn", servers.filter(row => kindOf(row) === "look").length === 1 ? "needs a look" : "need a look"],
    ["failed", "bad", "failed"],
    ["off", "faint", "not running"],
  ];
  return html`<div class="row kcounts" role="group" aria-label="Show only">
    ${counts.map(([kind, tone, words]) => {
      const count = servers.filter(row => kindOf(row) === kind).length;
      return (
        count > 0 &&
        html`<button
          type="button"
          class="kcount"
          key=${kind}
          aria-pressed=${String(only === kind)}
          onClick=${() => onOnly(only === kind ? null : kind)}
        >
          <span class=${`dot ${tone}`}></span>${count} ${words}
        </button>`
      );
    })}
  </div>`;
}

const kindOf = row =>
  row.state === "error"
    ? "failed"
    : needsLook(row)
      ? "look"
      : ["registered", "disconnected"].includes(row.state)
        ? "off"
        : "well";

async function reload() {
  const [done] = (await run("reload")) ?? [];
  if (!done) return;
  const words = ["added", "removed", "restarted", "adjusted"]
    .filter(name => done[name].length)
    .map(name => `${name}: ${done[name].join(", ")}`);
  toast(
    words.length ? `mgp.toml was read again. ${words.join("; ")}` : "mgp.toml was read again; no server has changed",
  );
}

function Panel() {
  const era = useStore(app, each => each.era);
  const isOpen = useStore(app, each => each.socket === "open" && connection(each)?.state === "open");
  const opened = useStore(app, each => (each.route.panel === "kernel" ? each.route.rest : ""));
  const { told, error, busy, failed } = useStore(store);
  const [text, setText] = useState(""),
    [only, setOnly] = useState(null),
    [chosen, setChosen] = useState(opened),
    [turn, setTurn] = useState(0);
  const search = useRef(null),
    list = useRef(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    let here = true;
    const asked = ask("kernel.follow", { era }, part => here && store.set({ told: part, error: null }));
    asked.catch(reason => here && !reason.cancelled && store.set({ error: reason }));
    return () => {
      here = false;
      asked.cancel();
    };
  }, [era, isOpen, turn]);
  const servers = [...(told?.servers ?? [])].sort((a, b) => (a.id < b.id ? -1 : 1));
  const words = text.trim().toLowerCase();
  const rows = servers.filter(
    row =>
      (!words || `${row.id} ${row.where ?? ""} ${row.name ?? ""}`.toLowerCase().includes(words)) &&
      (!only || kindOf(row) === only),
  );
  const shown = servers.find(row => row.id === opened);
  const choose = id => {
    setChosen(id);
    if (opened) go("kernel", id);
  };
  const close = () => {
    go("kernel");
    list.current?.focus();
  };
  useKeys({
    "/": () => search.current?.focus(),
    c: () => {
      const row = servers.find(each => each.id === chosen);
      if (!row) return false;
      copyText(JSON.stringify(row, null, 2)).then(done => done && toast(`${row.id} was copied as JSON`));
      return true;
    },
  });
  if (told && told.way === null) return html`<${Stacked} class="p-kern none" title="Kernel"><${NoKernel} /><//>`;
  const rate = servers.reduce((sum, row) => sum + (row.calls_per_second ?? 0), 0),
    tools = servers.reduce((sum, row) => sum + (row.tools ?? 0), 0);
  return html`<${Stacked} class=${`p-kern${shown ? " has-drawer" : ""}`} title="Kernel">
    <div class="head khead">
      <h2>Backends</h2>
      ${
        told &&
        html`<span class="dim small num cut no-m"
          >${plural(servers.length, "backend")},${" "}
          ${plural(tools, "tool")}${told.way === "control" ? `, ${rate.toFixed(1)} calls a second` : ""}</span
        >`
      }<span class="grow"></span>
      ${told?.servers && html`<${Counts} servers=${servers} only=${only} onOnly=${setOnly} />`}
      <span class="find2"
        ><${Search}
          value=${text}
          onInput=${setText}
          placeholder="Find a backend"
          inputRef=${search}
          onKeyDown=${event => {
            if (event.key === "Escape" || event.key === "Enter" || event.key === "ArrowDown") {
              event.preventDefault();
              list.current?.focus();
            }
          }}
      /></span>
      ${
        told?.verbs?.includes("reload") &&
        html`<span class="no-m kreload"
          ><${Button} icon="repeat" busy=${busy[""] === "reload"} title=${command(told, "reload")} onClick=${reload}
            >Reload mgp.toml<//
          ></span
        >`
      }
    </div>
    <div class="kbody">
      ${
        error &&
        html`<div class="pad">
          <${ErrorNote}
            error=${error}
            onRetry=${() => {
              store.set({ error: null });
              setTurn(turn + 1);
            }}
          />
        </div>`
      }
      ${
        failed[""] &&
        html`<div class="pad">
          <${ErrorNote} error=${failed[""]} fact="The file was not taken over." onRetry=${reload} />
        </div>`
      }
      ${
        !told
          ? !error && html`<${Loading} rows=${6} />`
          : !servers.length
            ? html`<${Empty} icon="servers" title="This kernel has no servers"
                >Add a [[servers]] entry to its mgp.toml; the kernel follows the file.<//
              >`
            : html`<${Rows}
                  rows=${rows}
                  told=${told}
                  busy=${busy}
                  chosen=${shown?.id ?? chosen}
                  onChoose=${choose}
                  onOpen=${id => {
                    setChosen(id);
                    go("kernel", id);
                  }}
                  listRef=${list}
                />${!rows.length && html`<p class="pad dim">No backend fits.</p>`}${
                  told.note && html`<p class="pad dim small">${told.note}</p>`
                }`
      }
    </div>
    ${
      shown &&
      html`<${Drawer}
        key=${shown.id}
        row=${shown}
        told=${told}
        busy=${busy[shown.id]}
        failed=${failed[shown.id]}
        onClose=${close}
      />`
    }<//
  >`;
}

// Asked once for the count beside the panel's name; the panel itself follows.
function start() {
  const asked = ask("kernel.follow", {}, part => {
    if (!store.get().told) store.set({ told: part });
    asked.cancel();
  });
  asked.catch(() => {});
}

export const kernelPanel = {
  Panel,
  start,
  keys: [
    ["/", "find a backend"],
    ["Enter", "open the backend"],
    ["C", "copy the backend as JSON"],
  ],
  count: () => useStore(store, each => each.told?.servers?.length ?? 0),
  finds: words =>
    (store.get().told?.servers ?? [])
      .filter(row => row.id.toLowerCase().includes(words.toLowerCase()))
      .map(row => ({ title: row.id, hint: "backend", icon: "servers", mono: true, run: () => go("kernel", row.id) })),
};
