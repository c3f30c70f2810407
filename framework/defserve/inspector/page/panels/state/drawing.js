// The lines and dots beside the rows in view, and the strip that shows the whole tree.
import { html, useMemo } from "../../vendor/preact.js";
import { MAX_LANES } from "./lanes.js";

const R = 4.5;

export const geometry = narrow => (narrow ? { left: 18, step: 18, height: 44 } : { left: 24, step: 22, height: 32 });
export const lanesWidth = (lanes, { left, step }) => Math.max(60, left * 2 + (lanes - 1) * step);

const tone = (lane, colour) => (lane === MAX_LANES ? "kg" : `k${colour}`);

// One path a colour: lines go straight down, and bend into the parent in the last row.
function edges(made, colours, shape, first, last) {
  const { left, step, height } = shape;
  const x = lane => left + lane * step,
    y = row => row * height + height / 2;
  const paths = new Map();
  const add = (name, d) => paths.set(name, (paths.get(name) ?? "") + d);
  for (let row = 0; row < made.count && row < last; row++) {
    const below = made.parentRow[row];
    const lost = below < 0 && made.lostAt.has(row);
    if (below < 0 && !lost) continue;
    if (below >= 0 && below < first) continue;
    const lane = made.lane[row];
    const dotted = made.folded[row] > 0 || (below >= 0 && made.folded[below] > 0) || lost;
    const main = lane === 0 && made.hasHead ? "main" : "";
    const name = `${tone(lane, colours[made.line[row]])} ${main} ${dotted ? "dots" : ""}`;
    if (lost) {
      add(name, `M${x(lane)} ${y(row)}v${height / 2}`);
      continue;
    }
    const to = made.lane[below];
    if (to === lane) {
      add(name, `M${x(lane)} ${y(row)}V${y(below)}`);
      continue;
    }
    const bend = height * 0.62;
    add(
      name,
      `M${x(lane)} ${y(row)}V${y(below) - bend}C${x(lane)} ${y(below) - 3} ` +
        `${x(lane) - (x(lane) - x(to)) * 0.2} ${y(below)} ${x(to)} ${y(below)}`,
    );
  }
  return [...paths];
}

export function Lanes({ made, colours, shape, width, first, last, gone }) {
  const { left, step, height } = shape;
  const dots = [];
  for (let row = first; row < last; row++) {
    const lane = made.lane[row],
      cx = left + lane * step,
      cy = row * height + height / 2;
    const cls = tone(lane, colours[made.line[row]]);
    if (made.folded[row]) {
      dots.push(
        html`<g class=${`${cls} ring`} key=${row}
          ><rect x=${cx - 7} y=${cy - 7} width="14" height="14" rx="4" /><path
            d=${`M${cx - 3} ${cy}h6M${cx} ${cy - 3}v6`}
        /></g>`,
      );
    } else if (row === made.headRow) {
      dots.push(
        html`<g class=${`${cls} ring`} key=${row}
          ><circle cx=${cx} cy=${cy} r="7" /><circle class="full" cx=${cx} cy=${cy} r="3.5"
        /></g>`,
      );
    } else if (made.tips.has(row) || made.parentRow[row] < 0) {
      dots.push(
        html`<g class=${`${cls} ring`} key=${row}
          ><circle class=${gone.has(made.at[row]) ? "lost" : ""} cx=${cx} cy=${cy} r=${R}
        /></g>`,
      );
    } else {
      const lost = gone.has(made.at[row]);
      dots.push(
        html`<g class=${`${cls} ${lost ? "ring" : "spot"}`} key=${row}
          ><circle class=${lost ? "lost" : ""} cx=${cx} cy=${cy} r=${R}
        /></g>`,
      );
    }
  }
  return html`<svg class="lanesvg" width=${width} height=${Math.max(1, made.count) * height} aria-hidden="true">
    ${edges(made, colours, shape, first, last).map(
      ([name, d]) => html`<path key=${name} class=${`e ${name}`} d=${d} />`,
    )}${dots}
  </svg>`;
}

// The whole tree in 16 px. A click goes there.
export function Strip({ made, colours, top, share, onGo }) {
  const paths = useMemo(() => {
    const found = new Map();
    const ends = new Map(); // line → [first row, last row, lane]
    for (let row = 0; row < made.count; row++) {
      const seen = ends.get(made.line[row]);
      if (seen) seen[1] = row;
      else ends.set(made.line[row], [row, row, made.lane[row]]);
    }
    for (const [line, [from, to, lane]] of ends) {
      const name = tone(lane, colours[line]),
        x = 4 + Math.min(lane, 4) * 2.5;
      found.set(name, (found.get(name) ?? "") + `M${x} ${from}V${to + 1}`);
    }
    return [...found];
  }, [made, colours]);
  const go = event => {
    const box = event.currentTarget.getBoundingClientRect();
    onGo((event.clientY - box.top) / box.height);
  };
  return html`<div class="ov" aria-hidden="true" onClick=${go}>
    <svg viewBox=${`0 0 16 ${Math.max(1, made.count)}`} preserveAspectRatio="none">
      <rect class="seen" x="0" width="16" y=${top * made.count} height=${share * made.count} />
      ${paths.map(([name, d]) => html`<path key=${name} class=${name} d=${d} />`)}
    </svg>
  </div>`;
}
