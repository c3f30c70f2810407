// What a checkpoint changed from its parent, while the pointer or the focus is on its row.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { age, bytes, number } from "../../format.js";

const MOST = 6;

export function Card({ tree, id, load, top, onEnter, onLeave }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let here = true;
    load(id).then(
      done => here && setFound(done),
      error => here && setFound({ missing: error.message }),
    );
    return () => {
      here = false;
    };
  }, [id]);
  const at = tree.placeOf.get(id),
    parent = tree.parents[at];
  const passed = age(tree.times[at]);
  return html`<div class="pop card-cp" role="tooltip" style=${top} onMouseEnter=${onEnter} onMouseLeave=${onLeave}>
    <div class="row">
      <code><b>${tree.shorts[at]}</b></code
      >${parent >= 0 && html`<span class="faint small">after</span><code>${tree.shorts[parent]}</code>`}<span
        class="grow"
      ></span>
      <span class="faint tiny cut">${passed} ago${tree.makers[at] ? `, ${tree.makers[at]}` : ""}</span>
    </div>
    ${
      found === null
        ? html`<p class="small faint">Loading</p>`
        : found.missing
          ? html`<p class="small dim">${found.missing}</p>`
          : html`<div class="op">
                <div class="patch">${found.ops.slice(0, MOST).flatMap(each => shortLines(each))}</div>
              </div>
              ${found.count > MOST && html`<p class="tiny faint">and ${number(found.count - MOST)} more</p>`}`
    }
    <div class="row tiny faint">
      <span>Click: compare with the head</span><span>Shift click: set B</span
      ><span class="grow"></span>${found?.bytes != null && html`<span>${bytes(found.bytes)}</span>`}
    </div>
  </div>`;
}

const shortLines = op => [
  "was" in op &&
    html`<span class="sub g">−</span><span class="sub">${op.path || "/"}${"  "}${JSON.stringify(op.was)}</span>`,
  "value" in op &&
    html`<span class="add g">+</span><span class="add">${op.path || "/"}${"  "}${JSON.stringify(op.value)}</span>`,
];
