// JSON to read: indented, coloured, folded where it is long. Everything is text.
import { html, useMemo, useState } from "../vendor/preact.js";
import { Button, Copy } from "./controls.js";
import { number } from "../format.js";

const MOST_LINES = 400;
const LONG_TEXT = 2000;

const scalar = value => (typeof value === "string"
  ? html`<span class="s">${JSON.stringify(value.length > LONG_TEXT ? value.slice(0, LONG_TEXT) + `… (${number(value.length)} characters)` : value)}</span>`
  : html`<span class="v">${JSON.stringify(value) ?? "undefined"}</span>`);

// The lines of a value: [depth, content] pairs. Small arrays and objects stay on one line.
function lines(value, depth = 0, before = null, after = "") {
  if (value === null || typeof value !== "object") return [[depth, html`${before}${scalar(value)}${after}`]];
  const isList = Array.isArray(value);
  const entries = isList ? value.map(each => [null, each]) : Object.entries(value);
  const [open, close] = isList ? "[]" : "{}";
  const name = key => (key === null ? null : html`<span class="p">${JSON.stringify(key)}</span>: `);
  const flat = entries.every(([, each]) => each === null || typeof each !== "object");
  if (!entries.length) return [[depth, html`${before}${open}${close}${after}`]];
  if (flat && JSON.stringify(value).length <= 60) {
    const inside = entries.map(([key, each], at) => html`${at ? ", " : ""}${name(key)}${scalar(each)}`);
    return [[depth, html`${before}${open} ${inside} ${close}${after}`]];
  }
  const inside = entries.flatMap(([key, each], at) => lines(each, depth + 1, name(key), at < entries.length - 1 ? "," : ""));
  return [[depth, html`${before}${open}`], ...inside, [depth, html`${close}${after}`]];
}

export function Json({ value, most = MOST_LINES, label = "JSON", copy }) {
  const [all, setAll] = useState(false);
  const every = useMemo(() => lines(value), [value]);
  const shown = all ? every : every.slice(0, most);
  return html`<div class="jsonbox">${copy && html`<${Copy} text=${() => JSON.stringify(value, null, 2)} label="Copy JSON" class="corner" />`}
    <pre class="json" tabindex="0" role="region" aria-label=${label}>${shown.map(([depth, content]) => html`<span class="jl">${"  ".repeat(depth)}${content}${"\n"}</span>`)}</pre>
    ${shown.length < every.length && html`<${Button} small plain onClick=${() => setAll(true)}>Show ${number(every.length - shown.length)} more lines<//>`}</div>`;
}
