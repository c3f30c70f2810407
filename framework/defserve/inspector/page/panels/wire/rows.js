// One row of the timeline, and the axis above its bars.
import { Component, html } from "../../vendor/preact.js";
import { bytes, clock, number, roundStep, since } from "../../format.js";
import { Chip } from "../../parts/controls.js";
import { Icon } from "../../parts/icons.js";
import { canTick } from "./model.js";

const PERSON = new Set(["elicitation/create", "sampling/createMessage", "roots/list"]);

export const ERA = { handshake: "k4", stateless: "k3" };

// The tone and the word of what became of a message.
export function outcome(row) {
  if (row.kind !== "request" && row.kind !== "answer") return null;
  if (row.error !== undefined) return row.error === true ? ["bad", "failed"] : ["bad", "refused"];
  if (row.note === "asks") return ["warn", "asks"];
  if (row.ms !== undefined || row.kind === "answer") return ["ok", "ok"];
  if (row.note === "cancelled") return ["warn", "cancelled"];
  return row.direction === "received" ? ["warn", "waits"] : ["acc", "runs"];
}

const millis = ms =>
  ms === undefined
    ? ""
    : ms < 100
      ? ms.toFixed(1)
      : ms < 1000
        ? String(Math.round(ms))
        : ms < 60000
          ? `${(ms / 1000).toFixed(1)} s`
          : `${(ms / 60000).toFixed(1)} m`;

// The time that the bars show: that of the rows in view, with their ends as far as they are not very far away.
export function windowOf(rows, width) {
  if (!rows.length) return null;
  const start = rows[0].time,
    last = rows.at(-1).time;
  const ends = rows.map(row => row.time + (row.kind === "answer" ? 0 : (row.ms ?? 0)) / 1000);
  // Whatever began with it, the request that ends first is shown to its end.
  const far = Math.max(start + 0.02, start + 3 * (last - start), Math.min(...ends.filter(end => end > start)));
  const stop = Math.max(last, Math.min(far, Math.max(...ends)), start + 0.004);
  const span = (stop - start) * 1.08;
  const most = Math.max(1, width / 66); // labels have room
  const step = roundStep(span / most);
  const ticks = [];
  for (let count = 0; count * step < span; count++) ticks.push(start + count * step);
  return { start, last, span, step, ticks };
}

const place = (frame, time, width) => ((time - frame.start) / frame.span) * width;

export function Axis({ frame, width }) {
  return html`<svg class="wf" width=${width} height="26" aria-hidden="true">
    ${frame?.ticks.map((at, count) => {
      const x = Math.round(place(frame, at, width)) + 0.5;
      const words = count ? since(count * frame.step) : clock(frame.start, false);
      return html`<path
          class="t"
          d=${`M${x} 0v26`}
        />${x < width - 50 && html`<text x=${x + 4} y="17">${words}</text>`}`;
    })}
  </svg>`;
}

function Bar({ row, frame, width }) {
  if (!frame || row.time > frame.start + frame.span || row.time + (row.ms ?? 0) / 1000 < frame.start) return null;
  const at = time => place(frame, time, width);
  const x = Math.max(-4, at(row.time)),
    lines = frame.ticks.map(tick => `M${Math.round(at(tick)) + 0.5} 0v26`).join("");
  const isBar = row.kind === "request";
  const end = isBar
    ? Math.min(
        width + 4,
        row.ms === undefined ? (row.note === "cancelled" ? x : width + 4) : at(row.time + row.ms / 1000),
      )
    : x;
  const tone = row.error !== undefined ? "bad" : PERSON.has(row.method) || row.note === "asks" ? "warn" : "";
  const parts = (row.parts ?? []).map(ms => at(row.time + ms / 1000)).filter(each => each <= width);
  const first = parts.length ? Math.min(parts[0], end) : x;
  const words = isBar && row.ms !== undefined && end < width - 34 && end - x < 48;
  return html`<svg class="wf" width=${width} height="26" aria-hidden="true">
    ${lines && html`<path class="t" d=${lines} />`}
    ${
      !isBar
        ? html`<circle class="notice" cx=${Math.min(Math.max(x, 3), width - 3)} cy="13" r="3" />`
        : html`${first > x + 1 && html`<rect class="early" x=${x} y="9" width=${first - x} height="8" rx="2" />`}
            <rect class=${`late ${tone}`} x=${first} y="9" width=${Math.max(3, end - first)} height="8" rx="2" />
            ${parts.slice(0, 12).map(each => html`<circle class="part" cx=${each} cy="13" r="2" />`)}
            ${words && html`<text x=${Math.max(end, x + 3) + 5} y="17">${millis(row.ms)}</text>`}`
    }
  </svg>`;
}

export const Head = ({ frame, width, gap }) =>
  html`<div class="whead" style=${{ paddingRight: `${16 + gap}px` }} aria-hidden="true">
    <span class="w-tick"></span><span>time</span><span></span><span>method</span><span class="no-m">what</span
    ><span class="w-id">id</span><span>outcome</span><span class="r no-m">size</span
    ><span class="r">ms</span>${width > 0 && html`<${Axis} frame=${frame} width=${width} />`}
  </div>`;

// In a narrow window the beginning that all notices share is left out.
function methodWords({ method, kind }) {
  if (!method) return kind === "other" ? "not a message" : "";
  return method.startsWith("notifications/")
    ? html`<span class="w-start">notifications/</span>${method.slice(14)}`
    : method;
}

// Drawn anew only if something has changed: most rows stay as they are while the list is scrolled.
export class Row extends Component {
  shouldComponentUpdate(next) {
    return ["row", "frame", "width", "ticked"].some(name => next[name] !== this.props[name]);
  }

  render() {
    return cells(this.props);
  }
}

function cells({ row, frame, width, ticked, onTick }) {
  if (!row) return html`<span role="gridcell" class="skel w0" aria-label="Loading"></span>`;
  const sent = row.direction === "sent",
    what = outcome(row);
  return html`<span role="gridcell" class="w-tick"
      >${
        canTick(row) &&
        html`<input
          type="checkbox"
          tabindex="-1"
          aria-label=${`Tick the call of ${row.about} for a test`}
          checked=${ticked}
          onMouseDown=${event => event.stopPropagation()}
          onClick=${event => event.stopPropagation()}
          onChange=${() => onTick(row.seq)}
        />`
      }</span
    >
    <span role="gridcell" class="num faint" title=${row.era}
      ><span class=${`eradot ${ERA[row.era] ?? ""}`}></span>${clock(row.time)}</span
    >
    <span role="gridcell" class=${sent ? "acc" : "ok"}
      ><${Icon} name=${sent ? "sent" : "received"} s /><span class="vh"
        >${sent ? "sent" : "received"}, ${row.era}</span
      ></span
    >
    <span role="gridcell" class="mono cut w-method" title=${row.method}
      >${
        row.kind === "answer" ? html`<span class="faint">answer ${row.method && "to "}</span>` : ""
      }${methodWords(row)}</span
    >
    <span role="gridcell" class="cut dim w-what" title=${row.about}>${row.about}</span>
    <span role="gridcell" class="cut faint num w-id" title=${row.id}>${row.id}</span>
    <span role="gridcell"
      >${
        what &&
        html`<${Chip} tone=${what[0]} title=${typeof row.error === "number" ? `code ${row.error}` : null}
          >${what[1]}<//
        >`
      }</span
    >
    <span
      role="gridcell"
      class="r num dim no-m"
      title=${`${number(row.size)} bytes${row.answer ? `, the answer ${number(row.answer)}` : ""}`}
      >${bytes(row.size + (row.answer ?? 0))}</span
    >
    <span role="gridcell" class="r num">${row.kind === "answer" ? "" : millis(row.ms)}</span>
    ${
      width > 0 &&
      html`<span role="gridcell" class="bar-cell"><${Bar} row=${row} frame=${frame} width=${width} /></span>`
    }`;
}
