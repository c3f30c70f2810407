// Compare: what the server lists now, beside what it listed when the page came or what a file has. Item by item, the
// worst first; the host judges by the rules of `defserve diff`.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { ask, on } from "../socket.js";
import { app, connection, createStore, go, toast, useStore } from "../store.js";
import { clock, number, plural, quoted } from "../format.js";
import { Button, Chip, Copy, Segments } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { saveFile } from "../parts/content.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Stacked } from "../parts/panes.js";
import { own } from "../parts/parsing.js";

const LARGEST = 15e6; // bytes of a file; the host takes a frame of 16 MiB
// A level → its chip, and the word for it.
const LEVELS = { breaking: ["bad", "breaks"], risky: ["warn", "risky"], compatible: ["ok", "fine"] };
const PANELS = { tool: "tools", resource: "resources", template: "resources", prompt: "prompts" };

// `file`: { name, text }, or null for what was listed first. `since`: when that was.
const store = createStore({ file: null, since: 0, found: null, error: null, busy: false, stale: false });

async function run() {
  const { era } = app.get(),
    { file } = store.get();
  if (!era) return;
  store.set({ busy: true, stale: false });
  try {
    const { since } = await ask("compare.keep", { era });
    const found = await ask("compare.run", { era, ...(file && { name: file.name, text: file.text }) });
    if (store.get().file === file) store.set({ found, since, error: null });
  } catch (error) {
    if (store.get().file === file) store.set({ found: null, error });
  }
  store.set({ busy: false });
}

function choose(file) {
  store.set({ file, found: null, error: null });
  run();
}

async function read(given) {
  if (!given) return;
  if (given.size > LARGEST) {
    store.set({ found: null, error: { message: `${given.name} has more than 15 MB`, fix: "choose a saved listing" } });
    return;
  }
  choose({ name: given.name, text: await given.text() });
}

async function save() {
  try {
    const { snapshot } = await ask("compare.save", { era: app.get().era });
    const name = (connection(app.get())?.server?.name ?? "server").replace(/[^\w.-]+/g, "-");
    saveFile(`${name}.json`, "application/json", JSON.stringify(snapshot, null, 2));
  } catch (error) {
    toast(`The listing could not be saved: ${error.message}`, "bad");
  }
}

// What was listed first is remembered as soon as a conversation opens, before anything can change.
function start() {
  const kept = new Set();
  const look = ({ era, connections }) => {
    if (!era || kept.has(era) || connections[era]?.state !== "open") return;
    kept.add(era);
    ask("compare.keep", { era }).then(
      ({ since }) => store.set({ since }),
      () => kept.delete(era),
    );
  };
  app.subscribe(look);
  look(app.get());
  on("changed", () => store.set({ stale: true }));
}

// The changes of each item together, in the order of the worst.
function byItem(changes) {
  const items = new Map();
  for (const change of changes) {
    const key = `${change.kind} ${change.name}`;
    if (!items.has(key)) items.set(key, { key, kind: change.kind, name: change.name, changes: [] });
    items.get(key).changes.push(change);
  }
  return [...items.values()];
}

const arrow = (was, now) => (was && now && was !== now ? `${number(was)} → ${number(now)}` : number(now || was));
const isGone = change => change.rule === "removed" || change.rule === "renamed";

function Item({ item, cost }) {
  const panel = item.changes.some(isGone) ? null : PANELS[item.kind];
  const open = () => go(panel, item.name);
  return html`<section class="cmpitem" aria-label=${`${item.kind} ${item.name}`}>
    <h3 class="row">
      ${
        panel
          ? html`<button type="button" class="link mono cut" onClick=${open}>${item.name}</button>`
          : html`<b class="mono cut">${item.name}</b>`
      }<span class="faint">${item.kind}</span>${
        cost && html`<span class="faint num">${arrow(cost.before, cost.after)} tokens</span>`
      }
    </h3>
    <ul>
      ${item.changes.map(
        change =>
          html`<li key=${change.rule + change.where + change.text}>
            <${Chip} tone=${LEVELS[change.level][0]}>${LEVELS[change.level][1]}<//>
            <div><span>${change.text}</span>${change.reason && html`<span class="why">${change.reason}</span>`}</div>
          </li>`,
      )}
    </ul>
  </section>`;
}

function Summary({ found }) {
  const { before, after, counts } = found;
  const step = after.tokens - before.tokens;
  const by = step ? ` (${step > 0 ? "+" : "−"}${number(Math.abs(step))})` : "";
  const words = `${arrow(before.tools, after.tools)} tools, about ${arrow(before.tokens, after.tokens)} tokens${by}`;
  const title = side => [side.name, side.version].filter(Boolean).join(" ");
  return html`<div class="cmpsum">
    <p>
      <b>${title(before) === title(after) ? title(after) : `${title(before)} → ${title(after)}`}</b>
    </p>
    <p class="row wrap">
      ${Object.entries(LEVELS).map(
        ([level, [tone, word]]) =>
          counts[level] > 0 &&
          html`<${Chip} key=${level} tone=${tone} class="num">${number(counts[level])} ${word}<//>`,
      )}
      <span class="dim num">${words}</span>
    </p>
  </div>`;
}

function Panel() {
  const { file, since, found, error, busy, stale } = useStore(store);
  const target = useStore(app, state => state.target),
    era = useStore(app, state => state.era);
  const input = useRef(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    run();
  }, [era]);
  const drop = event => {
    event.preventDefault();
    setOver(false);
    read(event.dataTransfer.files[0]);
  };
  const line = ["defserve diff", ...[file?.name ?? "old.json", ...target.words].map(quoted)].join(" ");
  const items = found ? byItem(found.changes) : [];
  return html`<${Stacked} class="p-compare" title="Compare">
    <section
      class=${`pane${over ? " over" : ""}`}
      aria-label="Comparison"
      onDragOver=${event => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave=${() => setOver(false)}
      onDrop=${drop}
    >
      <div class="head wrap">
        <h2>Now, compared with</h2>
        <${Segments}
          label="Compared with"
          value=${file ? "file" : "first"}
          onChange=${way => (way === "first" ? choose(null) : input.current.click())}
          options=${[
            ["first", since ? `At ${clock(since, false)}` : "At the start"],
            ["file", file ? file.name : "A file…"],
          ]}
        />
        <input
          ref=${input}
          type="file"
          class="vh"
          tabindex="-1"
          accept=".json,application/json"
          aria-label="A saved listing"
          onChange=${event => {
            read(event.target.files[0]);
            event.target.value = "";
          }}
        />
        <span class="grow"></span>
        ${stale && html`<span class="dim">The lists have changed.</span>`}
        <${Button} small icon="repeat" busy=${busy} onClick=${run}>Compare again<//>
        <${Button} small icon="save" onClick=${save}>Save the listing<//>
      </div>
      <div class="body" aria-busy=${String(busy)}>
        ${
          error
            ? html`<${ErrorNote} error=${error} fact="The two could not be compared." onRetry=${run} />`
            : !found
              ? html`<${Loading} rows=${4} />`
              : html`<${Summary} found=${found} />${
                    items.length
                      ? items.map(
                          item =>
                            html`<${Item}
                              key=${item.key}
                              item=${item}
                              cost=${item.kind === "tool" && own(found.tokens, item.name)}
                            />`,
                        )
                      : html`<${Empty} icon="check" title="Nothing changed"
                          >${
                            file
                              ? "The server lists exactly what the file has."
                              : html`Change the code, or choose a file of <code>defserve inspect --json</code>.`
                          }<//
                        >`
                  }${found.leftOut > 0 && html`<p class="dim">${plural(found.leftOut, "more change")}, not shown.</p>`}`
        }
      </div>
      <div class="cmd no-m">
        <${Icon} name="swap" s /><code class="cut grow" title=${line} tabindex="0">${line}</code
        ><${Copy} text=${line} label="Copy the command" />
      </div>
    </section>
  <//>`;
}

export const compare = {
  Panel,
  start,
  keys: [],
  count: () => {
    const breaking = useStore(store, state => state.found?.counts.breaking);
    return breaking || undefined;
  },
};
