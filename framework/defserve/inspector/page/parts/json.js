// JSON to read: indented, coloured, cut where it is long. Everything is text. Only lines that are shown are made.
import { html, useMemo, useState } from "../vendor/preact.js";
import { Button, Copy } from "./controls.js";
import { number } from "../format.js";

const MOST_LINES = 400;
const MOST_AT_ALL = 20000;
const LONG_TEXT = 2000;
const SHORT = 60; // characters of what stays on one line

const scalar = (value, longest) =>
  typeof value === "string"
    ? html`<span class="s"
        >${JSON.stringify(
          value.length > longest ? value.slice(0, longest) + `… (${number(value.length)} characters)` : value,
        )}</span
      >`
    : html`<span class="v">${JSON.stringify(value) ?? "undefined"}</span>`;

const isFlat = members => members.length < SHORT && members.every(each => each === null || typeof each !== "object");

// The lines of a value: [depth, content] pairs. Small arrays and objects stay on one line.
function* lines(value, longest, depth = 0, before = null, after = "") {
  if (value === null || typeof value !== "object") {
    yield [depth, html`${before}${scalar(value, longest)}${after}`];
    return;
  }
  const keys = Array.isArray(value) ? null : Object.keys(value),
    members = keys ? Object.values(value) : value;
  const [open, close] = keys ? "{}" : "[]";
  const name = at => keys && html`<span class="p">${JSON.stringify(keys[at])}</span>: `;
  if (!members.length) {
    yield [depth, html`${before}${open}${close}${after}`];
    return;
  }
  if (isFlat(members) && JSON.stringify(value).length <= SHORT) {
    const inside = members.map((each, at) => html`${at ? ", " : ""}${name(at)}${scalar(each, longest)}`);
    yield [depth, html`${before}${open} ${inside} ${close}${after}`];
    return;
  }
  yield [depth, html`${before}${open}`];
  for (let at = 0; at < members.length; at++)
    yield* lines(members[at], longest, depth + 1, name(at), at < members.length - 1 ? "," : "");
  yield [depth, html`${close}${after}`];
}

// The first lines of a value, and whether there are more.
function first(value, most, longest) {
  const shown = [];
  for (const line of lines(value, longest)) {
    if (shown.length >= most) return [shown, true];
    shown.push(line);
  }
  return [shown, false];
}

// `whole` is for what a person says yes to: no text in it is cut.
export function Json({ value, most = MOST_LINES, label = "JSON", copy, whole }) {
  const [all, setAll] = useState(false);
  const [shown, more] = useMemo(
    () => first(value, all ? MOST_AT_ALL : most, whole ? Infinity : LONG_TEXT),
    [value, all],
  );
  return html`<div class="jsonbox">
    ${copy && html`<${Copy} text=${() => JSON.stringify(value, null, 2)} label="Copy JSON" class="corner" />`}
    <pre class="json" tabindex="0" role="region" aria-label=${label}>
${shown.map(([depth, content]) => html`<span class="jl">${"  ".repeat(depth)}${content}${"\n"}</span>`)}</pre>
    ${
      more &&
      (all
        ? html`<p class="dim small">These are the first ${number(MOST_AT_ALL)} lines. Copy it to see the rest.</p>`
        : html`<${Button} small plain onClick=${() => setAll(true)}>Show more lines<//>`)
    }
  </div>`;
}
