// The waterfall of a call: a table of its stages, each with a bar on one time axis. Those inside others are indented.
import { html } from "../vendor/preact.js";
import { duration, plural } from "../format.js";
import { Part } from "./content.js";

const INDENT = 10; // pixels
const LEAST_WIDTH = 0.6; // of 100: what took no time is still seen
const LEAST_FAILED = 2;
const LEAST_BETWEEN = 0.01; // a share of the whole
const TICKS = [25, 50, 75];

const exact = ms => (ms < 0.005 ? "<0.01 ms" : ms < 1 ? `${ms.toFixed(2)} ms` : duration(ms));
const shareOf = (ms, whole) => {
  const share = whole > 0 ? (ms / whole) * 100 : 0;
  return share > 0 && share < 1 ? "<1 %" : `${Math.round(share)} %`;
};

// The stage beside this one, not around it, that has not ended when it begins.
const besideOf = (stages, at) => {
  const { depth, start } = stages[at];
  return stages.slice(0, at).findLast(each => each.depth === depth && each.start + each.ms > start + 0.01);
};

const Bar = ({ stage, whole }) => {
  const scale = value => (whole > 0 ? (value / whole) * 100 : 0);
  const width = Math.min(100, Math.max(stage.failed ? LEAST_FAILED : LEAST_WIDTH, scale(stage.ms)));
  return html`<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    ${TICKS.map(x => html`<line key=${x} x1=${x} x2=${x} y1="0" y2="10" />`)}
    <rect
      x=${Math.min(scale(stage.start), 100 - width)}
      width=${width}
      y="1"
      height="8"
      class=${stage.failed ? "failed" : stage.kind}
    />
  </svg>`;
};

function Row({ stages, at, whole }) {
  const stage = stages[at];
  const beside = besideOf(stages, at);
  return html`<tr>
    <th scope="row">
      <span class="stage" style=${{ paddingLeft: `${stage.depth * INDENT}px` }}
        >${stage.depth > 0 && html`<span class="vh">${`Level ${stage.depth + 1}: `}</span>`}
        <span class=${`grow${stage.failed ? " bad" : ""}`}>${stage.title}</span>
        ${
          beside &&
          html`<span class="faint" title=${`at the same time as ${beside.title}`} aria-hidden="true">∥</span
            ><span class="vh">, at the same time as ${beside.title}</span>`
        }
        ${stage.failed && html`<span class="bad small">failed</span>`}</span
      >
    </th>
    <td><${Bar} stage=${stage} whole=${whole} /></td>
    <td class="r num">${exact(stage.ms)}</td>
    <td class="r num dim">${shareOf(stage.ms, whole)}</td>
  </tr>`;
}

export function Waterfall({ of }) {
  const { ms, between, stages, left_out: left, note } = of;
  return html`<${Part} title="Where the time went">
    <table class="waterfall">
      <caption class="vh">
        Stages of the call, in the order in which they began
      </caption>
      <thead>
        <tr>
          <th scope="col">Stage</th>
          <th scope="col">
            <span class="axis"><span>0</span><span>${exact(ms / 2)}</span><span>${exact(ms)}</span></span>
          </th>
          <th scope="col" class="r">Time</th>
          <th scope="col" class="r">Share</th>
        </tr>
      </thead>
      <tbody>
        ${stages.map((_, at) => html`<${Row} key=${at} stages=${stages} at=${at} whole=${ms} />`)}
        ${
          between >= ms * LEAST_BETWEEN &&
          html`<tr>
            <th scope="row" class="faint">between the stages</th>
            <td></td>
            <td class="r num">${exact(between)}</td>
            <td class="r num dim">${shareOf(between, ms)}</td>
          </tr>`
        }
      </tbody>
    </table>
    ${left > 0 && html`<p class="tiny dim under">${plural(left, "more stage")} not shown.</p>`}
    ${note && html`<p class="tiny dim under">${note}</p>`}<//
  >`;
}
