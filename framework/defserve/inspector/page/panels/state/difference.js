// What lies between A and B: as a patch, side by side, or B as a whole.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { age, bytes, number, plural } from "../../format.js";
import { ask } from "../../socket.js";
import { Button, Chip, copyText } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { Empty, ErrorNote, Loading } from "../../parts/notes.js";

export const MODES = [
  ["diff", "Patch"],
  ["lines", "Side by side"],
  ["content", "Whole"],
];
const TONES = { add: "ok", remove: "bad", replace: "warn" };
const MOST_BETWEEN = 50;

// One of the two: a click copies its id.
function Mark({ letter, tree, id }) {
  const [copied, setCopied] = useState(false);
  const place = tree.placeOf.get(id);
  const words = copied
    ? "copied"
    : id === null
      ? ""
      : id === tree.head
        ? "head"
        : place === undefined
          ? ""
          : age(tree.times[place]);
  return html`<${Chip} tone="ab">${letter}<//
    ><button
      type="button"
      class="in mono abin"
      title=${id ? `Copy ${id}` : ""}
      onClick=${async () => {
        if (id && (await copyText(id))) {
          setCopied(true);
          setTimeout(() => setCopied(false), 1500);
        }
      }}
    >
      <span class="vh">${letter}: </span><span class="grow cut">${id ? tree.short(id) : "nothing"}</span
      ><span class="faint tiny">${words}</span>
    </button>`;
}

const text = value => JSON.stringify(value);

export function Operation({ op }) {
  return html`<div class="op">
    <div class="ophead">
      <${Chip} tone=${TONES[op.op]}>${op.op}<//><code class="cut" title=${op.path}>${op.path || "the whole"}</code>
      ${op.cut && html`<span class="grow"></span><span class="tiny faint">${bytes(op.cut)}</span>`}
    </div>
    <div class="patch">
      ${"was" in op && html`<span class="sub g">−</span><span class="sub" title=${text(op.was)}>${text(op.was)}</span>`}
      ${
        "value" in op &&
        html`<span class="add g">+</span><span class="add" title=${text(op.value)}>${text(op.value)}</span>`
      }
    </div>
  </div>`;
}

const Patch = ({ found }) =>
  html`${found.ops.map((op, at) => html`<${Operation} key=${at} op=${op} />`)}
  ${found.count === 0 && html`<p class="dim">The contents are the same.</p>`}
  ${
    found.count > found.ops.length &&
    html`<p class="small faint more">and ${number(found.count - found.ops.length)} more changes</p>`
  }`;

function Lines({ rows }) {
  const side = (line, differs, kind) =>
    html`<span class=${`sl ${line === null ? "gapl" : differs ? kind : ""}`}>${line ?? ""}</span>`;
  return html`<div class="sides" role="region" aria-label="Side by side" tabindex="0">
    ${rows.map((row, at) =>
      typeof row === "number"
        ? html`<span class="skipped" key=${at}>${plural(row, "line")} alike</span>`
        : html`<span class="pair" key=${at}>${side(row[0], row[2], "del")}${side(row[1], row[2], "ins")}</span>`,
    )}
    ${rows.length === 0 && html`<p class="dim">The contents are the same.</p>`}
  </div>`;
}

function Whole({ found }) {
  return found.content === undefined
    ? html`<p class="dim">This content has ${bytes(found.bytes)}, which is too long to show.</p>`
    : html`<${Json} value=${found.content} copy label="The whole content at B" />`;
}

// The way from A to B, in words and as a list.
function Between({ tree, a, b, found }) {
  const from = tree.placeOf.get(a) ?? -1,
    to = tree.placeOf.get(b) ?? -1;
  if (to < 0) return null;
  const { shared, back, on } = tree.between(from, to);
  const way =
    from < 0
      ? "The first checkpoint."
      : !back.length && !on.length
        ? "A and B are the same checkpoint."
        : !back.length
          ? `B is ${plural(on.length, "checkpoint")} after A.`
          : !on.length
            ? `B is ${plural(back.length, "checkpoint")} before A.`
            : shared < 0
              ? "A and B have nothing in common."
              : `Both come from ${tree.shorts[shared]}: ` +
                `A is ${number(back.length)} after it, B is ${number(on.length)}.`;
  const size = found?.count !== undefined ? ` ${plural(found.count, "change")}, ${bytes(found.bytes)}.` : "";
  return { words: way + size, on: from < 0 ? [] : on, back };
}

const Steps = ({ tree, title, places }) =>
  places.length > 0 &&
  html`<h3 class="between">${title}</h3>
    <table>
      <tbody>
        ${places.slice(0, MOST_BETWEEN).map(
          at =>
            html`<tr key=${at}>
              <td class="mono first">${tree.shorts[at]}</td>
              <td class="mono">${tree.calls[at] ?? ""}</td>
              <td class="faint cut">${tree.makers[at] ?? ""}</td>
              <td class="r faint num last">${age(tree.times[at])}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    ${
      places.length > MOST_BETWEEN && html`<p class="small faint">and ${number(places.length - MOST_BETWEEN)} more</p>`
    }`;

export function Difference({ tree, where, a, b, mode, onSwap }) {
  const [answer, setAnswer] = useState(null); // { key, found } or { key, error }
  const [turn, setTurn] = useState(0);
  const key = [where.era, where.set, where.owner, a, b, mode, turn].join(" ");
  useEffect(() => {
    if (!b) return undefined;
    let here = true;
    ask(`state.${mode}`, { ...where, a: a ?? "", b }).then(
      found => here && setAnswer({ key, found, mode }),
      error => here && setAnswer({ key, error, mode }),
    );
    return () => {
      here = false;
    };
  }, [key]);
  if (!b)
    return html`<div class="body">
      <${Empty} icon="branch" title="Nothing to compare yet">Checkpoints appear as calls change the state.<//>
    </div>`;
  // The last answer stays while the next is on its way, so that nothing flickers.
  const current = answer?.mode === mode ? answer : null;
  const found = current?.found;
  const way = Between({ tree, a, b, found: mode === "diff" ? found : null });
  return html`<div class="body diffbody" aria-busy=${String(current?.key !== key)}>
    <div class="row abrow">
      <${Mark} letter="A" tree=${tree} id=${a} /><${Button}
        icon="swap"
        label="Swap A and B"
        onClick=${onSwap}
        reason=${a ? null : "There is no A"}
      />
      <${Mark} letter="B" tree=${tree} id=${b} />
    </div>
    <p class="tiny faint way">${way?.words ?? ""}</p>
    ${
      current?.error
        ? html`<${ErrorNote} error=${current.error} onRetry=${() => setTurn(turn + 1)} />`
        : !found
          ? html`<${Loading} />`
          : found.missing
            ? html`<${Empty} icon="shield" title="No contents">${found.missing}<//>`
            : mode === "diff"
              ? html`<${Patch} found=${found} />`
              : mode === "lines"
                ? html`<${Lines} rows=${found.rows} />`
                : html`<${Whole} found=${found} />`
    }
    ${
      mode === "diff" &&
      way &&
      html`<${Steps} tree=${tree} title="Between A and B" places=${way.on} /><${Steps}
          tree=${tree}
          title=${way.on.length ? "Left behind" : "After B"}
          places=${way.on.length || way.back.length ? way.back : []}
        />`
    }
  </div>`;
}
