// Latency: how long the calls of each tool took, errors, and calls a second. All of it was measured by the inspector.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ask } from "../socket.js";
import { app, connection, createStore, go, useStore } from "../store.js";
import { useKeys } from "../keys.js";
import { age, clock, duration, number, plural } from "../format.js";
import { Button, Search } from "../parts/controls.js";
import { stepped } from "../parts/lists.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";

const HEIGHT = 160;
const store = createStore({ chosen: null });

const edge = ms => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

// The bars that have something, with one empty bar at each side.
function filled(bars) {
  const first = bars.findIndex(Boolean),
    last = bars.findLastIndex(Boolean);
  return [Math.max(0, first - 1), Math.min(bars.length - 1, last + 1)];
}

// A histogram in a row: no numbers, the same scale for all tools, so that they can be compared by eye.
function Small({ tool, from, to }) {
  const most = Math.max(...tool.bars),
    width = 112 / (to - from + 1);
  return html`<svg class="lat" width="112" height="24" aria-hidden="true">
    ${tool.bars
      .slice(from, to + 1)
      .map(
        (count, at) =>
          count > 0 &&
          html`<rect
            key=${at}
            x=${at * width + 0.5}
            width=${Math.max(2, width - 1)}
            y=${24 - bar(count, most, 22)}
            height=${bar(count, most, 22)}
            class=${tool.failed[from + at] * 2 > count ? "x" : ""}
          />`,
      )}
  </svg>`;
}

const bar = (count, most, height) => (count ? Math.max(2, (count / most) * height) : 0);

// Times are on a logarithmic scale. Errors are the red part of a bar.
function Histogram({ tool, edges }) {
  const [from, to] = filled(tool.bars),
    most = Math.max(...tool.bars),
    count = to - from + 1,
    width = 100 / count;
  const shown = Array.from({ length: count }, (_, at) => from + at);
  const range = at =>
    at === 0
      ? `under ${edge(edges[0])}`
      : `${edge(edges[at - 1])}${at === edges.length ? " and more" : ` to ${edge(edges[at])}`}`;
  const words = shown
    .filter(at => tool.bars[at])
    .map(
      at =>
        `${range(at)}: ${plural(tool.bars[at], "call")}${tool.failed[at] ? `, ${number(tool.failed[at])} failed` : ""}`,
    );
  return html`<figure class="hist">
    <svg
      viewBox=${`0 0 100 ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label=${`Times of ${tool.tool}. ${words.join("; ")}`}
    >
      ${shown.map(
        (at, place) =>
          html`<g key=${at}
            ><title>${range(at)}: ${plural(tool.bars[at], "call")}</title
            ><rect class="hit" x=${place * width} y="0" width=${width} height=${HEIGHT} />
            <rect
              x=${place * width + 0.4}
              width=${width - 0.8}
              y=${HEIGHT - bar(tool.bars[at], most, HEIGHT - 18)}
              height=${bar(tool.bars[at], most, HEIGHT - 18)}
            />
            ${
              tool.failed[at] > 0 &&
              html`<rect
                class="x"
                x=${place * width + 0.4}
                width=${width - 0.8}
                y=${HEIGHT - bar(tool.failed[at], most, HEIGHT - 18)}
                height=${bar(tool.failed[at], most, HEIGHT - 18)}
              />`
            }</g
          >`,
      )}
    </svg>
    <div class="axis tiny faint num" aria-hidden="true">
      ${shown.map(at => html`<span key=${at}>${at > 0 ? edge(edges[at - 1]) : "0"}</span>`)}
    </div>
  </figure>`;
}

// Calls in each second of the last minute; the newest at the right.
function Minute({ seconds }) {
  const most = Math.max(1, ...seconds.map(([calls]) => calls));
  const all = seconds.reduce((sum, [calls]) => sum + calls, 0),
    ten = seconds.slice(-11, -1).reduce((sum, [calls]) => sum + calls, 0) / 10;
  return html`<div class="minute">
    <svg
      viewBox="0 0 60 36"
      preserveAspectRatio="none"
      role="img"
      aria-label=${`${plural(all, "call")} in the last minute`}
    >
      ${seconds.map(
        ([calls, errors], at) =>
          html`<g key=${at}
            >${
              calls > 0 &&
              html`<rect x=${at + 0.1} width="0.8" y=${36 - bar(calls, most, 34)} height=${bar(calls, most, 34)} />`
            }
            ${
              errors > 0 &&
              html`<rect
                class="x"
                x=${at + 0.1}
                width="0.8"
                y=${36 - bar(errors, most, 34)}
                height=${bar(errors, most, 34)}
              />`
            }</g
          >`,
      )}
    </svg>
    <div class="row tiny faint num">
      <span>a minute ago</span><span class="grow"></span
      ><span>${ten.toFixed(1)} calls a second in the last 10 s, at most ${number(most)} in one second</span
      ><span class="grow"></span><span>now</span>
    </div>
  </div>`;
}

const Fact = ({ name, children }) =>
  html`<div>
    <dt>${name}</dt>
    <dd class="num">${children}</dd>
  </div>`;

function Detail({ tool, edges }) {
  return html`<div class="body">
    <dl class="latfacts">
      <${Fact} name="calls">${number(tool.calls)}<//><${Fact} name="median">${duration(tool.median)}<//
      ><${Fact} name="p95">${duration(tool.p95)}<//><${Fact} name="slowest">${duration(tool.slowest[0].ms)}<//
      ><${Fact} name="errors"><span class=${tool.errors ? "bad" : ""}>${number(tool.errors)}</span><//>
    </dl>
    <${Histogram} tool=${tool} edges=${edges} />
    <h3 class="between">Slowest</h3>
    <table>
      <tbody>
        ${tool.slowest.map(
          call =>
            html`<tr key=${call.seq}>
              <td class="mono first num">${clock(call.time)}</td>
              <td class="num">${duration(call.ms)}</td>
              <td>${call.failed ? html`<span class="bad">failed</span>` : html`<span class="dim">done</span>`}</td>
              <td class="r last">
                <${Button}
                  small
                  plain
                  icon="wire"
                  label="Show on the wire"
                  onClick=${() => go("wire", String(call.seq))}
                  ><span class="wide">Show on the wire</span><//
                >
              </td>
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function Table({ tools, chosen, onChoose, listRef }) {
  const from = Math.min(...tools.map(tool => filled(tool.bars)[0])),
    to = Math.max(...tools.map(tool => filled(tool.bars)[1]));
  const at = tools.findIndex(tool => tool.tool === chosen);
  const onKeyDown = event => {
    const next = stepped(event, at, tools.length);
    if (next === null) return;
    event.preventDefault();
    onChoose(tools[next].tool);
    event.currentTarget.querySelectorAll("[role=row]")[next]?.scrollIntoView({ block: "nearest" });
  };
  return html`<div
    class="lattable"
    role="grid"
    aria-label="Tools"
    aria-rowcount=${tools.length}
    tabindex="0"
    onKeyDown=${onKeyDown}
    aria-activedescendant=${at >= 0 ? `lat-${at}` : null}
    ref=${listRef}
  >
    ${tools.map(
      (tool, row) =>
        html`<div
          role="row"
          id=${`lat-${row}`}
          key=${tool.tool}
          class=${`latrow${row === at ? " on" : ""}`}
          aria-rowindex=${row + 1}
          aria-selected=${String(row === at)}
          onClick=${() => onChoose(tool.tool)}
        >
          <span role="gridcell" class="mono cut" title=${tool.tool}>${tool.tool}</span
          ><span role="gridcell" class="no-m"><${Small} ...${{ tool, from, to }} /></span
          ><span role="gridcell" class="r num">${number(tool.calls)}</span>
          <span role="gridcell" class="r num">${duration(tool.median)}</span
          ><span role="gridcell" class="r num">${duration(tool.p95)}</span>
          <span role="gridcell" class=${`r num ${tool.errors ? "bad" : "faint"}`}>${number(tool.errors)}</span
          ><span role="gridcell" class="r num faint no-m">${age(tool.last)}</span>
        </div>`,
    )}
  </div>`;
}

function Panel() {
  const era = useStore(app, each => each.era);
  const isOpen = useStore(app, each => each.socket === "open" && !!connection(each));
  const chosen = useStore(store, each => each.chosen);
  const [told, setTold] = useState(null);
  const [error, setError] = useState(null);
  const [text, setText] = useState("");
  const [show, setShow] = useState("");
  const [turn, setTurn] = useState(0);
  const search = useRef(null),
    list = useRef(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    let here = true;
    setError(null);
    const asked = ask("latency.follow", { era }, part => here && setTold(part));
    asked.catch(failed => here && setError(failed));
    return () => {
      here = false;
      asked.cancel();
    };
  }, [era, isOpen, turn]);
  useKeys({
    "/": () => search.current?.focus(),
    escape: () => {
      if (!show) return false;
      setShow("");
      return true;
    },
  });
  const tools = (told?.tools ?? []).filter(tool => tool.tool.toLowerCase().includes(text.trim().toLowerCase()));
  const current = tools.find(tool => tool.tool === chosen) ?? tools[0];
  const choose = tool => {
    store.set({ chosen: tool });
  };
  const left = html`<${Pane} label="Tools" class="l-list"
    ><div class="head">
      <h2>Latency</h2>
      <span class="dim small num cut"
        >${told ? `${plural(told.tools.length, "tool")}, the last 1,000 calls of each` : ""}</span
      ><span class="grow"></span>
      <span class="find2"
        ><${Search}
          value=${text}
          onInput=${setText}
          placeholder="Find"
          label="Find a tool"
          inputRef=${search}
          onKeyDown=${event => {
            if (event.key === "Escape") list.current?.focus();
          }}
      /></span>
    </div>
    ${error && html`<div class="pad"><${ErrorNote} error=${error} onRetry=${() => setTurn(turn + 1)} /></div>`}
    ${
      !told
        ? html`<${Loading} rows=${6} />`
        : !told.tools.length
          ? html`<${Empty}
              icon="bars"
              title="No calls yet"
              action=${html`<${Button} icon="tool" onClick=${() => go("tools")}>Call a tool<//>`}
              >How long each call takes appears here as calls end.<//
            >`
          : html`<${Minute} seconds=${told.seconds} />
              <div class="lathead latrow tiny faint" aria-hidden="true">
                <span>tool</span><span class="no-m">times</span><span class="r">calls</span><span class="r">median</span
                ><span class="r">p95</span><span class="r">errors</span><span class="r no-m">last</span>
              </div>
              <div class="body flush" onClick=${() => setShow("show-detail")}>
                ${
                  tools.length
                    ? html`<${Table} tools=${tools} chosen=${current?.tool} onChoose=${choose} listRef=${list} />`
                    : html`<p class="pad dim">No tool that was called fits.</p>`
                }
              </div>`
    }<//
  >`;
  const right = html`<${Pane} label="Times" class="l-detail"
    ><div class="head">
      <span class="only-m"><${Button} icon="left" plain label="Back to the tools" onClick=${() => setShow("")} /></span>
      <h2 class="mono cut">${current?.tool ?? "Times"}</h2>
    </div>
    ${
      current
        ? html`<${Detail} key=${current.tool} tool=${current} edges=${told.edges} />`
        : html`<div class="body"></div>`
    }<//
  >`;
  return html`<${Panes} id="latency" class="p-lat" title="Latency" show=${show}>${left}${right}<//>`;
}

export const latencyPanel = {
  id: "latency",
  title: "Latency",
  group: "Protocol",
  icon: "bars",
  keys: [["/", "find a tool"]],
  Panel,
};
