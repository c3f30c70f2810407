// What a server gave: structured results, texts, pictures, sounds, links, resources. One `Part` each.
import { html, useState } from "../vendor/preact.js";
import { bytes, decodedSize, number, plural } from "../format.js";
import { go } from "../store.js";
import { Button, Chip, Copy, Segments } from "./controls.js";
import { Json } from "./json.js";
import { VirtualList } from "./lists.js";
import { Markdown, isMarkdown } from "./markdown.js";
import { isScalar, parsed } from "./parsing.js";
import { Table, rowSchema, rowsOf } from "./tables.js";

const PICTURES = /^image\/(png|jpe?g|gif|webp|avif|bmp|svg\+xml|x-icon)$/i;
const SOUNDS = /^audio\/[\w.+-]+$/i;
const LONG_TEXT = 20000;

export const Part = ({ title, about, tools, children }) =>
  html`<div class="part">
    <h3>${title}${about && html`<${Chip}>${about}<//>`}<span class="grow"></span>${tools}</h3>
    ${children}
  </div>`;

// Gives the browser a file to save. `data` is a text, or base64 with `coded`.
export function saveFile(name, type, data, coded) {
  const content = coded ? Uint8Array.from(atob(data), letter => letter.charCodeAt(0)) : data;
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const Save = ({ name, type, data, coded }) =>
  html`<${Button} small plain icon="save" onClick=${() => saveFile(name, type, data, coded)}>Save<//>`;
const ending = type =>
  (type ?? "").split("/").pop().replace("svg+xml", "svg").replace("plain", "txt").split("+")[0] || "bin";

export function Structured({ value, schema, running, title = "Structured result" }) {
  const rows = rowsOf(value);
  const [as, setAs] = useState("table");
  const about = rows ? plural(rows.length, "row") + (running ? " so far" : "") : null;
  return html`<${Part}
    title=${title}
    about=${about}
    tools=${html`<${Copy} text=${() => JSON.stringify(value, null, 2)} label="Copy JSON" />${
        rows &&
        html`<${Segments}
          label="Show as"
          options=${[
            ["table", "Table"],
            ["json", "JSON"],
          ]}
          value=${as}
          onChange=${setAs}
        />`
      }`}
  >
    ${
      rows && as === "table"
        ? html`<${Table} rows=${rows} schema=${rowSchema(schema)} more=${running} label="Structured result" />`
        : html`<${Json} value=${value} label="Structured result" tools />`
    }<//
  >`;
}

export function Text({ text, title = "Text" }) {
  const rich = isMarkdown(text);
  const [as, setAs] = useState(rich ? "read" : "plain");
  const [all, setAll] = useState(false);
  const shown = all ? text : text.slice(0, LONG_TEXT);
  return html`<${Part}
    title=${title}
    about=${text.length > 200 ? plural(text.length, "character") : null}
    tools=${html`<${Copy} text=${text} label="Copy the text" />${
        rich &&
        html`<${Segments}
          label="Show as"
          options=${[
            ["read", "Markdown"],
            ["plain", "Plain"],
          ]}
          value=${as}
          onChange=${setAs}
        />`
      }`}
  >
    ${as === "read" ? html`<${Markdown} text=${shown} />` : html`<div class="pre">${shown}</div>`}
    ${
      shown.length < text.length &&
      html`<${Button} small plain onClick=${() => setAll(true)}
        >Show ${number(text.length - shown.length)} more characters<//
      >`
    }<//
  >`;
}

// What a browser decodes as base64: no letter is left over behind groups of four, and padding fills the last group.
function isCoded(data) {
  if (typeof data !== "string" || !/^[A-Za-z0-9+/\s]*(=\s*){0,2}$/.test(data)) return false;
  const { length } = data.replace(/\s/g, "");
  return data.includes("=") ? length % 4 === 0 : length % 4 !== 1;
}

function Media({ type, data, name }) {
  const [broken, setBroken] = useState(false);
  if (!isCoded(data))
    return html`<${Part} title="Bytes" about=${type}
      ><p class="dim">The server sent something that is not base64.</p><//
    >`;
  const size = `${type || "bytes"}, ${bytes(decodedSize(data ?? ""))}`;
  const tools = html`<${Save} name=${`${name}.${ending(type)}`} type=${type} data=${data} coded />`;
  const url = `data:${type};base64,${data}`;
  if (PICTURES.test(type))
    return html`<${Part} title="Picture" about=${size} tools=${tools}
      >${
        broken
          ? html`<p class="dim">The browser cannot show this picture.</p>`
          : html`<img class="plot" src=${url} alt="Picture of the result" onError=${() => setBroken(true)} />`
      }<//
    >`;
  if (SOUNDS.test(type))
    return html`<${Part} title="Audio" about=${size} tools=${tools}
      ><audio class="audio" controls src=${url}></audio
    ><//>`;
  return html`<${Part} title="Bytes" about=${size} tools=${tools} />`;
}

const worded = value => (typeof value === "string" && value ? value : null);

function Linked({ block }) {
  const uri = String(block.uri ?? ""),
    [title, name, description, type] = ["title", "name", "description", "mimeType"].map(member =>
      worded(block[member]),
    );
  return html`<${Part} title="Resource link" about=${type}
    ><div class="card linkcard">
      <div class="grow">
        <b class="cut">${title ?? name ?? uri}</b>
        <p class="mono small dim cut" title=${uri}>${uri}</p>
        ${description && html`<p class="small">${description}</p>`}
      </div>
      <${Copy} text=${uri} label="Copy the URI" /><${Button} small onClick=${() => go("resources", uri)}>Read it<//>
    </div><//
  >`;
}

// One content block of MCP.
export function Block({ block }) {
  if (block === null || typeof block !== "object") return html`<${Text} text=${String(block)} />`;
  if (block.type === "text") return html`<${Text} text=${String(block.text ?? "")} />`;
  if (block.type === "image" || block.type === "audio")
    return html`<${Media} type=${String(block.mimeType ?? "")} data=${String(block.data ?? "")} name="result" />`;
  if (block.type === "resource_link") return html`<${Linked} block=${block} />`;
  if (block.type === "resource") {
    const { mimeType, text, blob } = block.resource ?? {},
      uri = String(block.resource?.uri ?? "");
    return text !== undefined
      ? html`<${Text} text=${String(text)} title=${`Resource ${uri}`} />`
      : html`<${Media}
          type=${String(mimeType ?? "")}
          data=${String(blob ?? "")}
          name=${uri.split("/").pop() || "resource"}
        />`;
  }
  return html`<${Part} title=${String(block.type ?? "Part")}><${Json} value=${block} /><//>`;
}

// Content blocks; those that only repeat the structured result are left out.
export function repeats(block, structured) {
  if (structured === undefined || block?.type !== "text") return false;
  const value = parsed(block.text),
    same = each => JSON.stringify(each) === JSON.stringify(value);
  if (value === undefined) return structured?.result === block.text;
  return (
    same(structured) || same(structured?.result) || (Array.isArray(structured?.result) && structured.result.some(same))
  );
}

// Texts that are JSON objects, one a row of a table, and the blocks that are something else. Null if a text is no
// object.
export function tabled(blocks) {
  const rows = blocks.filter(block => block?.type === "text").map(block => parsed(block.text));
  const whole = rows.length && rows.every(row => !isScalar(row) && !Array.isArray(row));
  return whole ? { rows, rest: blocks.filter(block => block?.type !== "text") } : { rows: null, rest: blocks };
}

const LEVELS = { warning: "warn", error: "bad", critical: "bad", alert: "bad", emergency: "bad" };
const LINE = 18; // pixels
const MOST_IN_VIEW = 14; // lines, before the log scrolls

const quoted = value => (typeof value === "string" && !/[\s"=]/.test(value) ? value : JSON.stringify(value));

// `step i=0`: the message, then what was logged with it.
export function spell(data) {
  if (typeof data === "string") return data;
  if (isScalar(data) || Array.isArray(data)) return JSON.stringify(data);
  const { message, ...rest } = typeof data.message === "string" ? data : { message: "", ...data };
  return [message, ...Object.entries(rest).map(([name, value]) => `${name}=${quoted(value)}`)]
    .filter(Boolean)
    .join(" ");
}

// Any number of lines; only those in view are drawn. `lines` grows at its end, so `count` says how many there are.
export function Log({ lines, count, dropped }) {
  if (!count) return null;
  const row = index => {
    const line = lines[index];
    const text = `${line.logger ? `${line.logger}: ` : ""}${spell(line.data)}`;
    return html`<span role="gridcell" class="logline" title=${text}
      ><span class="ts">${(line.ms / 1000).toFixed(2)}</span>
      <span class=${`lv ${LEVELS[line.level] ?? ""}`}>${String(line.level ?? "info")}</span> ${text}</span
    >`;
  };
  const copy = () =>
    lines.map(line => `${(line.ms / 1000).toFixed(2)} ${line.level ?? "info"} ${spell(line.data)}`).join("\n");
  return html`<${Part}
    title="Log"
    about=${plural(count, "line")}
    tools=${html`<${Copy} text=${copy} label="Copy the log" />`}
    >${dropped > 0 && html`<p class="dim small">${number(dropped)} older lines were left out.</p>`}
    <div class="log" style=${{ height: `${Math.min(count, MOST_IN_VIEW) * LINE + 16}px` }}>
      <${VirtualList} label="Log" count=${count} height=${LINE} row=${row} columns=${1} follow /></div
  ><//>`;
}
