// The folders of a skill as the server lists them. What it shows is not verified; files that the entry has are read so.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { plural } from "../../format.js";
import { go } from "../../store.js";
import { Button, Chip } from "../../parts/controls.js";
import { Icon } from "../../parts/icons.js";
import { List } from "../../parts/lists.js";
import { Empty, ErrorNote, Loading } from "../../parts/notes.js";

const rootOf = uri => uri.replace(/\/SKILL\.md$/, "");

export function Folders({ skill, era, onOpen }) {
  const root = rootOf(skill.uri);
  const [folder, setFolder] = useState(root);
  const [told, setTold] = useState({ folder: null });
  const [chosen, setChosen] = useState(null);
  useEffect(() => {
    let current = true;
    const keep = given => {
      if (current) setTold({ folder, ...given });
    };
    ask("skills.directory", { era, uri: folder }).then(keep, error => keep({ error }));
    return () => {
      current = false;
    };
  }, [folder, era]);
  const up = folder === root ? null : folder.slice(0, folder.lastIndexOf("/"));
  const known = uri => skill.files.find(file => file.uri === uri);
  const items = [...(up ? [{ uri: up, name: "..", folder: true, up: true }] : []), ...(told.children ?? [])];
  const open = uri => {
    const item = items.find(each => each.uri === uri);
    if (item?.folder) {
      setFolder(item.uri);
      setChosen(null);
    } else if (known(uri)) onOpen(known(uri).path);
  };
  const row = item =>
    html`<${Icon} name=${item.folder ? "right" : "page"} s /><span class="nm cut"
        >${item.name}${item.folder && !item.up ? "/" : ""}</span
      >${
        item.folder
          ? html`<span></span>`
          : known(item.uri)
            ? html`<${Chip} tone="out">listed<//>`
            : html`<${Chip} tone="warn">not in the entry<//>`
      }<span class="d cut">${item.up ? "up" : item.type}</span>`;
  const strange = chosen && !known(chosen) && items.find(each => each.uri === chosen && !each.folder);
  return html`<p class="mono small dim wraps pad">${folder}/</p>
    ${
      told.error
        ? html`<div class="body"><${ErrorNote} error=${told.error} fact="The folder could not be read." /></div>`
        : told.folder !== folder
          ? html`<${Loading} rows=${3} />`
          : items.length
            ? html`<${List}
                label="Folder"
                id="folder"
                keyOf=${item => item.uri}
                selected=${chosen}
                rowClass="tool q"
                onSelect=${setChosen}
                onOpen=${open}
                row=${row}
                groups=${[{ key: "children", items }]}
              />`
            : html`<div class="body"><${Empty} icon="page" title="The folder is empty" /></div>`
    }
    ${told.more > 0 && html`<p class="tiny dim pad">${plural(told.more, "entry", "entries")} more.</p>`}
    ${
      strange &&
      html`<div class="bar">
        <span class="grow tiny dim">It cannot be verified.</span
        ><${Button} small onClick=${() => go("resources", strange.uri)}>Read it in Resources<//>
      </div>`
    }`;
}
