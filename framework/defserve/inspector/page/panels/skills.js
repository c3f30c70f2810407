// Skills: what a server knows how to do, the files of each, and whether they are what was listed.
import { html, useEffect, useState } from "../vendor/preact.js";
import { app, go, useStore } from "../store.js";
import { bytes, plural } from "../format.js";
import { Button, Chip, Copy, Tabs } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { List } from "../parts/lists.js";
import { Empty, Note } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { ItemPane, fitting, listed, useItems } from "./listed.js";
import { Contents } from "./skills/contents.js";
import { Folders } from "./skills/folders.js";
import { forget, keyOf, read, reads } from "./skills/state.js";

const { store, load, start } = listed("skills.list", "resources");
const short = digest => digest.slice(7, 15);

function Files({ skill, era, path, onOpen }) {
  const all = useStore(reads, state => state.read);
  const mark = file => {
    const state = all[keyOf(era, skill.uri, file.path)];
    return state?.file ? (state.file.refused ? ["bad", "refused"] : ["ok", "verified"]) : null;
  };
  const row = file => {
    const found = mark(file);
    return html`<${Icon} name=${/\.(png|jpe?g|gif|webp|svg)$/i.test(file.path) ? "window" : "page"} s /><span
        class="nm cut"
        >${file.path}</span
      >${
        found ? html`<${Chip} tone=${found[0]}>${found[1]}<//>` : html`<span class="tok">${bytes(file.size)}</span>`
      }<span class="d mono cut">sha256:${short(file.digest)}…${found && `, ${bytes(file.size)}`}</span>`;
  };
  return html`<${List}
    label="Files"
    id="file"
    keyOf=${file => file.path}
    selected=${path}
    rowClass="tool q"
    onSelect=${next => reads.set(state => ({ path: { ...state.path, [skill.uri]: next } }))}
    onOpen=${onOpen}
    row=${row}
    groups=${[{ key: "files", items: skill.files }]}
  />`;
}

function Skill({ skill, era, path, directories, onOpen, onBack }) {
  const [tab, setTab] = useState("files");
  const size = skill.files.reduce((sum, file) => sum + file.size, 0);
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="grow cut toolname mono">${skill.name || skill.uri}</h2>
      ${
        skill.files.length > 0 &&
        html`<${Chip} tone="out" class="num">${plural(skill.files.length, "file")}, ${bytes(size)}<//>`
      }
    </div>
    <div class="intro">
      ${skill.about && html`<div class="about">${skill.about}</div>`}
      <div class="uriline">
        <code class="mono small dim grow">${skill.uri}</code><${Copy} text=${skill.uri} label="Copy the URI" />
      </div>
      ${
        skill.refused &&
        html`<${Note} tone="bad" fact="Refused: this skill cannot be verified."
          >${skill.refused}. None of its files is read.<//
        >`
      }
    </div>
    <${Tabs}
      label="Skill"
      value=${tab}
      onChange=${setTab}
      tabs=${[
        ["files", "Files"],
        ...(directories && !skill.refused ? [["folders", "Folders"]] : []),
        ["entry", "Entry"],
      ]}
    />
    ${
      tab === "entry"
        ? html`<div class="body stream">
            ${
              skill.fingerprint &&
              html`<dl class="kv">
                  <dt>fingerprint</dt>
                  <dd class="row">
                    <code class="mono cut" tabindex="0" title=${skill.fingerprint}>${skill.fingerprint}</code
                    ><${Copy} text=${skill.fingerprint} label="Copy the fingerprint" />
                  </dd>
                </dl>
                <p class="tiny dim">
                  It stands for exactly these files. An approval of a person should be kept under it.
                </p>`
            }
            <div class="part">
              <h3>Frontmatter</h3>
              ${
                skill.frontmatter
                  ? html`<${Json} value=${skill.frontmatter} copy label="Frontmatter" />`
                  : html`<p class="dim">It is too long to be shown.</p>`
              }
            </div>
          </div>`
        : tab === "folders"
          ? html`<${Folders} key=${skill.uri} skill=${skill} era=${era} onOpen=${onOpen} />`
          : skill.files.length
            ? html`<${Files} skill=${skill} era=${era} path=${path} onOpen=${onOpen} />`
            : html`<div class="body">
                <${Empty} icon="page" title="No files">Its entry lists none that could be verified.<//>
              </div>`
    }`;
}

function Panel() {
  const paths = useStore(reads, state => state.path);
  const items = useItems(store, "skills", {
    itemsOf: list => list.skills,
    textsOf: each => [each.name, each.uri, each.about],
    keyOf: each => each.uri,
  });
  const { era, chosen: rest, list, item: skill, view, setView } = items;
  const path = paths[rest] ?? skill?.files[0]?.path;
  useEffect(forget, [list]);
  const onOpen = next => {
    read(era, skill.uri, next);
    setView("res");
  };
  const row = each =>
    html`<${Icon} name="book" s /><span class="nm cut">${each.name || each.uri}</span>${
        each.refused
          ? html`<${Chip} tone="bad">refused<//>`
          : html`<span class="tok">${plural(each.files.length, "file")}</span>`
      }<span class="d cut">${each.about.trim().split("\n")[0]}</span>`;
  return html`<${Panes} id="skills" class="p-skills" title="Skills" show=${`show-${view}`}>
    <${ItemPane}
      items=${items}
      noun="skill"
      icon="book"
      load=${load}
      focus="[role=listbox]"
      row=${row}
      without=${{ go: "resources", to: "Resources", text: "This server offers no skills in this era." }}
      >${list?.more > 0 && html`<p class="tiny dim pad">${plural(list.more, "skill")} more than are shown.</p>`}
      ${
        list?.offered &&
        html`<div class="bar"><${Button} small icon="repeat" onClick=${() => load(era)}>List again<//></div>`
      }<//
    >
    <${Pane} label=${skill?.name || "Skill"} class="t-form"
      >${
        skill
          ? html`<${Skill}
              key=${`${era} ${skill.uri}`}
              skill=${skill}
              era=${era}
              path=${path}
              directories=${list.directories}
              onOpen=${onOpen}
              onBack=${() => setView("list")}
            />`
          : html`<div class="head only-m">
                <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
              </div>
              <div class="body">
                <${Empty} icon="book" title=${rest && list ? "There is no such skill here" : "No skill is chosen"}
                  >${rest ? "It may be in the other era." : "Choose one on the left."}<//
                >
              </div>`
      }<//
    >
    <${Pane} label="File" class="t-res"
      ><${Contents}
        key=${`${era} ${rest} ${path}`}
        skill=${skill}
        path=${path}
        era=${era}
        onBack=${() => setView("form")} /><//
  ><//>`;
}

export const skills = {
  Panel,
  start,
  keys: [["Ctrl Enter, R", "read the file"]],
  count: () => {
    const era = useStore(app, state => state.era);
    return useStore(store, state => state.lists)[era]?.skills.length;
  },
  finds: words =>
    fitting(store.get().lists[app.get().era]?.skills ?? [], words, each => [each.name, each.about]).map(each => ({
      title: each.name || each.uri,
      hint: "skill",
      icon: "book",
      run: () => go("skills", each.uri),
    })),
};
