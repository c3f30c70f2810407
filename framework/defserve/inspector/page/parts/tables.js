// A list of objects as a table. It grows at its end, with one grey row while more is to come.
import { html, useState } from "../vendor/preact.js";
import { number } from "../format.js";
import { Button } from "./controls.js";
import { resolve } from "./form/schema.js";
import { isScalar, own } from "./parsing.js";

const MOST_ROWS = 200,
  MOST_COLUMNS = 16;
const SHORT = 20; // characters of what stays on one line
const TONES = {
  __proto__: null,
  ok: "ok",
  done: "ok",
  success: "ok",
  active: "ok",
  healthy: "ok",
  passed: "ok",
  safe: "ok",
  warm: "warn",
  warning: "warn",
  waiting: "warn",
  pending: "warn",
  late: "warn",
  moderate: "warn",
  error: "bad",
  failed: "bad",
  bad: "bad",
  denied: "bad",
  refused: "bad",
  dangerous: "bad",
};

// The rows of a value that can be shown as a table, or null: a list of objects, also as the only member of an object.
export function rowsOf(value) {
  const isRow = each => !isScalar(each) && !Array.isArray(each);
  const list = Array.isArray(value)
    ? value
    : isRow(value) && Object.keys(value).length === 1 && Array.isArray(Object.values(value)[0])
      ? Object.values(value)[0]
      : null;
  return list?.length && list.every(isRow) && Object.keys(list[0]).length ? list : null;
}

// The schema of a row, from the output schema of a tool.
export function rowSchema(schema) {
  if (!schema) return {};
  let at = resolve(schema, schema);
  if (at.properties && Object.keys(at.properties).length === 1) at = resolve(Object.values(at.properties)[0], schema);
  return at.items ? (resolve(at.items, schema).properties ?? {}) : {};
}

const isId = text =>
  typeof text === "string" && text.length <= 40 && /^[\w.:/-]*$/.test(text) && /[\d_.:/-]/.test(text);

function Cell({ value, chip, mono }) {
  if (value === null || value === undefined) return html`<span class="faint">–</span>`;
  if (chip) return html`<span class=${`chip ${TONES[String(value).toLowerCase()] ?? ""}`}>${String(value)}</span>`;
  if (typeof value === "object")
    return html`<span class="mono cut cell" title=${JSON.stringify(value)}>${JSON.stringify(value)}</span>`;
  const text = String(value);
  return html`<span class=${`cell${mono ? " mono" : text.length > SHORT ? " long" : ""}`}>${text}</span>`;
}

export function Table({ rows, schema = {}, more, label = "Result" }) {
  const [all, setAll] = useState(false);
  const columns = [...new Set(rows.slice(0, 50).flatMap(row => Object.keys(row)))].slice(0, MOST_COLUMNS);
  const shown = all ? rows : rows.slice(0, MOST_ROWS);
  const about = columns.map(name => {
    const values = rows
      .slice(0, 50)
      .map(row => own(row, name))
      .filter(each => each !== null && each !== undefined);
    return {
      name,
      right: values.length > 0 && values.every(each => typeof each === "number"),
      chip:
        Array.isArray(own(schema, name)?.enum) ||
        (values.length > 0 && values.every(each => typeof each === "string" && each.toLowerCase() in TONES)) ||
        (values.length > 0 && values.every(each => typeof each === "boolean")),
      mono: values.length > 0 && values.every(isId),
    };
  });
  return html`<div class="card scrolls" tabindex="0" role="region" aria-label=${`${label}, table`}>
    <table>
      <thead>
        <tr>
          ${about.map(
            ({ name, right }) =>
              html`<th key=${name} scope="col" class=${right ? "r" : ""}>${own(schema, name)?.title ?? name}</th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${shown.map(
          (row, at) =>
            html`<tr key=${at}>
              ${about.map(
                ({ name, right, chip, mono }) =>
                  html`<td key=${name} class=${right ? "r num" : ""}>
                    <${Cell} value=${own(row, name)} chip=${chip} mono=${mono} />
                  </td>`,
              )}
            </tr>`,
        )}
        ${
          more &&
          html`<tr aria-hidden="true">
            ${about.map(
              ({ name, right }, at) =>
                html`<td key=${name} class=${right ? "r" : ""}><span class=${`skel c${at % 3}`}></span></td>`,
            )}
          </tr>`
        }
      </tbody>
    </table>
    ${
      shown.length < rows.length &&
      html`<${Button} small plain onClick=${() => setAll(true)}>Show all ${number(rows.length)} rows<//>`
    }
  </div>`;
}
