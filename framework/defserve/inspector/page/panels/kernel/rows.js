// The table of servers: one row each, sorted by name, so that rows stay put.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { number } from "../../format.js";
import { Button, Chip } from "../../parts/controls.js";
import { Icon } from "../../parts/icons.js";
import { opens, stepped } from "../../parts/lists.js";
import { failedShare, ms, run, runs, span, stateOf, upOf, whereOf } from "./model.js";

export function State({ row }) {
  const { tone, shape, words } = stateOf(row);
  return html`<span class=${`row gap4 nowrap ${tone}`}
    >${
      shape === "cross"
        ? html`<${Icon} name="close" class="cross" />`
        : html`<span class=${`dot${shape === "ring" ? " ring" : ""}`}></span>`
    }${words}</span
  >`;
}

// Medians of the last ten minutes on a scale of their own. Steps without calls are bridged; a red dot where calls
// failed.
export function Spark({ row }) {
  const steps = row.history?.steps ?? [];
  const points = steps
    .map((step, at) => (step?.[0] ? [2 + (at * 108) / (steps.length - 1), step[2], step[1]] : null))
    .filter(Boolean);
  if (!points.length) return html`<span class="tiny faint nowrap">no calls</span>`;
  const most = Math.max(...points.map(point => point[1])) || 1;
  const y = value => 21 - (value / most) * 17;
  const line = points.map(([x, value], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y(value).toFixed(1)}`).join(" ");
  return html`<svg class=${`spark${row.state === "connected" ? "" : " offs"}`} viewBox="0 0 112 24" aria-hidden="true">
    ${
      points.length > 1
        ? html`<path
              class="area"
              d=${`${line} L${points.at(-1)[0].toFixed(1)} 23 L${points[0][0].toFixed(1)} 23Z`}
            /><path d=${line} />`
        : html`<circle class="p" cx=${points[0][0]} cy=${y(points[0][1])} r="2" />`
    }
    ${points
      .filter(point => point[2])
      .map(([x, value]) => html`<circle class="x" key=${x} cx=${x} cy=${y(value)} r="2" />`)}
  </svg>`;
}

function Act({ row, verbs, busy, onReview }) {
  if (row.held?.length)
    return html`<${Button}
      small
      onClick=${event => {
        event.stopPropagation();
        onReview(row.id);
      }}
      >Review ${row.held.length}<//
    >`;
  const verb = verbs.includes("start") ? "start" : "restart";
  if (!runs(row) && verbs.includes(verb))
    return html`<${Button}
      small
      busy=${busy}
      label=${`Start ${row.id}`}
      onClick=${event => {
        event.stopPropagation();
        run(verb, row.id);
      }}
      >Start<//
    >`;
  return null;
}

const share = row => {
  const found = failedShare(row);
  return found == null ? "–" : found === 0 ? "0" : `${(found * 100).toFixed(found < 0.1 ? 1 : 0)} %`;
};

export function Rows({ rows, told, busy, chosen, onChoose, onOpen, listRef }) {
  const [, setNow] = useState(0);
  useEffect(() => {
    // times up go on, also while nothing else changes
    const timer = setInterval(() => setNow(now => now + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const at = rows.findIndex(row => row.id === chosen);
  const whole = told.way === "control";
  const onKeyDown = event => {
    if (event.target !== event.currentTarget) return;
    const next = stepped(event, at, rows.length);
    if (next !== null && rows.length) {
      event.preventDefault();
      onChoose(rows[next].id);
      event.currentTarget.querySelectorAll("tbody tr")[next]?.scrollIntoView({ block: "nearest" });
    } else if (opens(event) && rows.length) {
      event.preventDefault();
      onOpen(rows[Math.max(0, at)].id);
    }
  };
  return html`<table
    class="kt"
    role="grid"
    aria-label="Backends"
    tabindex="0"
    aria-activedescendant=${at >= 0 ? `kern-${at}` : null}
    onKeyDown=${onKeyDown}
    ref=${listRef}
  >
    <thead>
      <tr>
        <th>name</th>
        <th>state</th>
        ${whole && html`<th class="k2">where</th>`}
        <th class="r k3">tools</th>
        ${
          whole &&
          html`<th class="r">calls/s</th>
            <th class="k2 k3">latency, last 10 min</th>
            <th class="r">median ms</th>
            <th class="r k3">p95 ms</th>
            <th class="r k3">errors</th>`
        }
        <th class="r k3">restarts</th>
        <th class="r k3">up</th>
        <th class="r"><span class="vh">actions</span></th>
      </tr>
    </thead>
    <tbody>
      ${rows.map((row, index) => {
        const [how, where] = whereOf(row.where),
          failed = failedShare(row);
        return html`<tr
          key=${row.id}
          id=${`kern-${index}`}
          class=${row.id === chosen ? "on" : ""}
          aria-selected=${String(row.id === chosen)}
          onClick=${() => {
            onChoose(row.id);
            onOpen(row.id);
          }}
        >
          <td><b class="mono cut kname" title=${row.id}>${row.id}</b></td>
          <td><${State} row=${row} /></td>
          ${
            whole &&
            html`<td class="dim k2 kwhere">
              <span class="row gap4"
                ><${Chip} tone="out">${how}<//><span class="small cut" title=${row.where}>${where}</span></span
              >
            </td>`
          }
          <td class="r num k3">${row.tools ?? "–"}</td>
          ${
            whole &&
            html`<td class="r num">${row.calls_total ? (row.calls_per_second ?? 0).toFixed(1) : "–"}</td>
              <td class="k2 k3"><${Spark} row=${row} /></td>
              <td class="r num">${ms(row.median_ms)}</td>
              <td class="r num k3">${ms(row.p95_ms)}</td>
              <td
                class=${`r num nowrap k3${failed ? " bad" : ""}`}
                title=${
                  row.errors_total ? `${number(row.errors_total)} of ${number(row.calls_total)} calls failed` : null
                }
              >
                ${share(row)}
              </td>`
          }
          <td class=${`r num k3${row.restarts ? " warn" : ""}`}>${row.restarts ?? "–"}</td>
          <td class="r num dim nowrap k3">${span(upOf(row))}</td>
          <td class="r"><${Act} row=${row} verbs=${told.verbs} busy=${!!busy[row.id]} onReview=${onOpen} /></td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}
