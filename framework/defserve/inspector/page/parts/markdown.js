// Markdown from servers. A small allow-list, made of elements and never of HTML text; everything else stays text.
import { html } from "../vendor/preact.js";

// Hostile text must not make this slow: repeats are bounded, or nothing that follows them can match what they took.
// Blocks get lines without blanks at their end.
const INLINE =
  /(`{1,3})([^`]{1,500}?)\1|\*\*([^*]{1,500})\*\*|__([^_]{1,500})__|\*([^*\s][^*]{0,500})\*|\[([^\]]{1,300})\]\((?:(https?:\/\/[^\s)]{1,2000})|([\w.~%#/-]{1,500}))\)|(https?:\/\/[^\s<>"')\]]{1,2000})/g;

// `follow(path)` gives what opens a link inside of the same place, or null; without it such a link stays text.
export function inline(text, follow) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const [all, , code, bold, bold2, italic, words, url, path, bare] = found;
    if (code) parts.push(html`<code>${code}</code>`);
    else if (bold || bold2) parts.push(html`<strong>${inline(bold ?? bold2, follow)}</strong>`);
    else if (italic) parts.push(html`<em>${inline(italic, follow)}</em>`);
    else if (path) parts.push(pathLink(all, words, follow?.(path)));
    else parts.push(html`<a href=${url ?? bare} target="_blank" rel="noreferrer noopener">${words ?? bare}</a>`);
    at = found.index + all.length;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

const pathLink = (all, words, open) =>
  open ? html`<button type="button" class="plainlink" onClick=${open}>${words}</button>` : all;

const cells = line =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map(cell => cell.trim());
const BLOCKS = [
  [
    /^```\S*$/,
    (lines, found, at) => {
      let end = at + 1;
      while (end < lines.length && lines[end] !== "```") end++;
      return [html`<pre class="block" tabindex="0">${lines.slice(at + 1, end).join("\n")}</pre>`, end + 1];
    },
  ],
  [
    /^(#{1,6})\s+(.*)$/s,
    (lines, found, at, say) => [
      html`<p class=${`h h${found[1].length}`} role="heading" aria-level=${Math.min(6, found[1].length + 2)}>
        ${say(found[2])}
      </p>`,
      at + 1,
    ],
  ],
  [
    /^\s*([-*+]|\d+[.)])\s+/,
    (lines, found, at, say) => {
      const items = [];
      const marker = /^\s*([-*+]|\d+[.)])\s+/;
      while (at < lines.length && (marker.test(lines[at]) || (/^\s{2,}\S/.test(lines[at]) && items.length))) {
        if (marker.test(lines[at])) items.push(lines[at].replace(marker, ""));
        else items.push(items.pop() + " " + lines[at].trim());
        at++;
      }
      const made = items.map(item => html`<li>${say(item)}</li>`);
      return [
        /\d/.test(found[1])
          ? html`<ol class="md">
              ${made}
            </ol>`
          : html`<ul class="md">
              ${made}
            </ul>`,
        at,
      ];
    },
  ],
  [
    /^\s*>\s?/,
    (lines, found, at, say) => {
      const said = [];
      while (at < lines.length && /^\s*>\s?/.test(lines[at])) said.push(lines[at++].replace(/^\s*>\s?/, ""));
      return [html`<blockquote>${say(said.join(" "))}</blockquote>`, at];
    },
  ],
  [
    /^\s{0,8}\|.*\|$/s,
    (lines, found, at, say) => {
      if (!/^[\s:|-]+$/.test(lines[at + 1] ?? "")) return null;
      const head = cells(lines[at]),
        rows = [];
      at += 2;
      while (at < lines.length && /^\s*\|/.test(lines[at])) rows.push(cells(lines[at++]));
      return [
        html`<div class="card scrolls" tabindex="0">
          <table>
            <thead>
              <tr>
                ${head.map(cell => html`<th>${say(cell)}</th>`)}
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                row =>
                  html`<tr>
                    ${row.map(cell => html`<td>${say(cell)}</td>`)}
                  </tr>`,
              )}
            </tbody>
          </table>
        </div>`,
        at,
      ];
    },
  ],
  [/^\s*([-*_])(\s*\1){2,}$/, (lines, found, at) => [html`<hr />`, at + 1]],
];

export function Markdown({ text, follow }) {
  const lines = text.split("\n").map(line => line.trimEnd()),
    made = [];
  const say = words => inline(words, follow);
  let at = 0,
    paragraph = [];
  const flush = () => {
    if (paragraph.length) made.push(html`<p>${say(paragraph.join("\n"))}</p>`);
    paragraph = [];
  };
  while (at < lines.length) {
    if (!lines[at].trim()) {
      flush();
      at++;
      continue;
    }
    let block = null;
    for (const [pattern, make] of BLOCKS) {
      const found = pattern.exec(lines[at]);
      if (found && (block = make(lines, found, at, say))) break;
    }
    if (block) {
      flush();
      made.push(block[0]);
      at = block[1];
    } else paragraph.push(lines[at++]);
  }
  flush();
  return html`<div class="markdown">${made}</div>`;
}

// Whether a text is meant as markdown: it has marks that plain text does not have.
export function isMarkdown(whole) {
  const text = whole.slice(0, 5000);
  return (
    /^(#{1,6} |```|[ \t]{0,8}\|.{1,400}\|[ \t]*$|> )/m.test(text) ||
    /\*\*[^*]{1,200}\*\*|\[[^\]]{1,200}\]\(https?:/.test(text) ||
    (text.match(/^[ \t]{0,8}([-*+]|\d{1,4}\.)[ \t]+\S/gm)?.length ?? 0) > 1
  );
}

const MOST_FRONT = 200; // lines

// What stands between two lines of --- at the beginning, as [name, value] pairs, and the text after it. A line that is
// indented, or begins no pair, belongs to the value before it.
export function splitFrontMatter(text) {
  const lines = text.split("\n").map(line => line.trimEnd());
  const end = lines[0] === "---" ? lines.slice(0, MOST_FRONT).indexOf("---", 1) : -1;
  if (end < 0) return { pairs: [], text };
  const pairs = [];
  for (const line of lines.slice(1, end)) {
    const found = /^([\w.-]{1,100}):(?:\s+(.*))?$/.exec(line);
    if (found) pairs.push([found[1], found[2] ?? ""]);
    else if (pairs.length && line.trim())
      pairs.at(-1)[1] += `${pairs.at(-1)[1] ? "\n" : ""}${line.replace(/^ {1,2}/, "")}`;
  }
  return { pairs, text: lines.slice(end + 1).join("\n") };
}

// The file that a link in another one leads to: ../a.md in docs/b.md is a.md. Null if it leads out of the folder.
export function resolvePath(from, link) {
  let path = link.split(/[?#]/)[0];
  try {
    path = decodeURIComponent(path);
  } catch {
    /* a per cent sign that stands for itself */
  }
  const parts = path.startsWith("/") ? [] : from.split("/").slice(0, -1);
  for (const part of path.split("/")) {
    if (part === "..") {
      if (!parts.length) return null;
      parts.pop();
    } else if (part && part !== ".") parts.push(part);
  }
  return parts.join("/");
}
