// The right pane: a file of a skill, if it is the one that was listed.
import { html, useState } from "../../vendor/preact.js";
import { bytes, clock, duration } from "../../format.js";
import { useKeys } from "../../keys.js";
import { useStore } from "../../store.js";
import { Block } from "../../parts/content.js";
import { Button, Chip, Copy, Segments } from "../../parts/controls.js";
import { Markdown, resolvePath, splitFrontMatter } from "../../parts/markdown.js";
import { Empty, ErrorNote, Loading, Note } from "../../parts/notes.js";
import { keyOf, read, reads } from "./state.js";

const WAYS = [
  ["read", "Markdown"],
  ["plain", "Plain text"],
];
const LONG = 100000; // characters: more are shown as plain text

// A text with its front matter as a table. Links to other files of the skill open them.
function Written({ text, path, files, onOpen }) {
  const [way, setWay] = useState("read");
  const { pairs, text: rest } = splitFrontMatter(text);
  const follow = link => {
    const target = resolvePath(path, link);
    return files.some(each => each.path === target) ? () => onOpen(target) : null;
  };
  return html`<div class="part">
    <div class="row">
      <h3>Text</h3>
      <span class="grow"></span><${Segments} label="How it is shown" options=${WAYS} value=${way} onChange=${setWay} />
      <${Copy} text=${text} label="Copy the text" />
    </div>
    ${
      way === "plain"
        ? html`<div class="pre">${text}</div>`
        : html`${
              pairs.length > 0 &&
              html`<table class="headers frontmatter">
                <caption class="vh">
                  Front matter
                </caption>
                <tbody>
                  ${pairs.map(
                    ([name, value], at) =>
                      html`<tr key=${at}>
                        <th scope="row" class="mono">${name}</th>
                        <td>${value}</td>
                      </tr>`,
                  )}
                </tbody>
              </table>`
            }<${Markdown} text=${rest} follow=${follow} />`
    }
  </div>`;
}

function Shown({ state, listed, files, onOpen }) {
  const { file, error } = state;
  if (error) return html`<${ErrorNote} error=${error} fact="It could not be read." />`;
  if (file.refused) {
    return html`<${Note} tone="bad" role="alert" fact="Refused: this is not the file that was listed."
        >${file.refused}. Nothing of it is shown. A host must not use this skill.<//
      >
      <dl class="kv">
        <dt>listed</dt>
        <dd class="mono wraps">${listed.digest}</dd>
        <dt>size</dt>
        <dd>${bytes(listed.size)}</dd>
      </dl>`;
  }
  const { text, blob, type } = file;
  return html`<dl class="kv">
      <dt>digest</dt>
      <dd class="row">
        <code class="mono cut" tabindex="0" title=${file.digest}>${file.digest}</code
        ><${Copy} text=${file.digest} label="Copy the digest" />
      </dd>
      <dt>size</dt>
      <dd class="num">${bytes(file.size)}, as listed</dd>
    </dl>
    ${
      text !== undefined && /\.(md|markdown)$/i.test(file.path) && text.length <= LONG
        ? html`<${Written} text=${text} path=${file.path} files=${files} onOpen=${onOpen} />`
        : text !== undefined
          ? html`<${Block} block=${{ type: "text", text }} />`
          : html`<${Block} block=${{ type: "resource", resource: { uri: file.path, mimeType: type, blob } }} />`
    }`;
}

export function Contents({ skill, path, era, onBack }) {
  const listed = skill?.files.find(each => each.path === path);
  const state = useStore(reads, each => each.read)[keyOf(era, skill?.uri, path)];
  const onRead = () => {
    if (!listed) return false;
    read(era, skill.uri, path, true);
    return true;
  };
  useKeys({ "ctrl+enter": onRead, r: onRead });
  const back = html`<${Button} plain icon="left" class="only-m" label="Back to the skill" onClick=${onBack} />`;
  if (!listed)
    return html`<div class="head only-m">${back}</div>
      <div class="body"><${Empty} icon="page" title="No file is chosen">Choose one on the left.<//></div>`;
  const ok = state?.file && !state.file.refused;
  return html`<div class="head">
      ${back}
      <h2 class="mono grow cut toolname">${path}</h2>
      ${
        ok
          ? html`<${Chip} tone="ok" icon="check">verified<//>`
          : state?.file?.refused
            ? html`<${Chip} tone="bad" icon="close">refused<//>`
            : html`<${Chip} tone="out">not read<//>`
      }
    </div>
    <div class="body stream">
      ${
        !state
          ? html`<${Empty}
              icon="page"
              title="Nothing of it is read yet"
              action=${html`<${Button} primary icon="play" keys="Ctrl ↵" onClick=${onRead}>Read it<//>`}
              >A host reads a skill when it is needed, and compares each file with the list.<//
            >`
          : state.busy && !state.at
            ? html`<${Loading} rows=${4} />`
            : html`<${Shown}
                state=${state}
                listed=${listed}
                files=${skill.files}
                onOpen=${next => read(era, skill.uri, next)}
              />`
      }
    </div>
    ${
      state &&
      html`<div class="bar">
        <${Button} icon="repeat" busy=${state.busy} keys="R" onClick=${onRead}>Read again<//
        ><span class="grow"></span>${
          state.at && html`<span class="tiny faint num">read at ${clock(state.at, false)}, ${duration(state.ms)}</span>`
        }
      </div>`
    }`;
}
