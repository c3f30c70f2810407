// Markdown from servers. A small allow-list, made of elements and never of HTML text; everything else stays text.
import { html } from "../vendor/preact.js";

// Hostile text must not make this slow: repeats are bounded, or nothing that follows them can match what they took.
// Blocks get lines without blanks at their end.
const INLINE =
  /(`{1,3})([^`]{1,500}?)\1|\*\*([^*]{1,500})\*\*|__([^_]{1,500})__|\*([^*\s][^*]{0,500})\*|\[([^\]]{1,300})\]\((https?:\/\/[^\s)]{1,2000})\)|(https?:\/\/[^\s<>"')\]]{1,2000})/g;

export function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const [all, , code, bold, bold2, italic, words, url, bare] = found;
    if (code) parts.push(html`<code>${code}</code>`);
    else if (bold || bold2) parts.push(html`<strong>${inline(bold ?? bold2)}</strong>`);
    else if (italic) parts.push(html`<em>${inline(italic)}</em>`);
    else parts.push(html`<a href=${url ?? bare} target="_blank" rel="noreferrer noopener">${words ?? bare}</a>`);
    at = found.index + all.length;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

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
    (lines, found, at) => [
      html`<p class=${`h h${found[1].length}`} role="heading" aria-level=${Math.min(6, found[1].length + 2)}>
        ${inline(found[2])}
      </p>`,
      at + 1,
    ],
  ],
  [
    /^\s*([-*+]|\d+[.)])\s+/,
    (lines, found, at) => {
      const items = [];
      const marker = /^\s*([-*+]|\d+[.)])\s+/;
      while (at < lines.length && (marker.test(lines[at]) || (/^\s{2,}\S/.test(lines[at]) && items.length))) {
        if (marker.test(lines[at])) items.push(lines[at].replace(marker, ""));
        else items.push(items.pop() + " " + lines[at].trim());
        at++;
      }
      const made = items.map(item => html`<li>${inline(item)}</li>`);
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
    (lines, found, at) => {
      const said = [];
      while (at < lines.length && /^\s*>\s?/.test(lines[at])) said.push(lines[at++].replace(/^\s*>\s?/, ""));
      return [html`<blockquote>${inline(said.join(" "))}</blockquote>`, at];
    },
  ],
  [
    /^\s{0,8}\|.*\|$/s,
    (lines, found, at) => {
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
                ${head.map(cell => html`<th>${inline(cell)}</th>`)}
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                row =>
                  html`<tr>
                    ${row.map(cell => html`<td>${inline(cell)}</td>`)}
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

export function Markdown({ text }) {
  const lines = text.split("\n").map(line => line.trimEnd()),
    made = [];
  let at = 0,
    paragraph = [];
  const flush = () => {
    if (paragraph.length) made.push(html`<p>${inline(paragraph.join("\n"))}</p>`);
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
      if (found && (block = make(lines, found, at))) break;
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
