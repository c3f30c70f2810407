// Tasks: start a tool that goes on, see how far it is, answer it, cancel it, read its result.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { keyName, useKeys } from "../keys.js";
import { app, go, useStore } from "../store.js";
import { age, cut } from "../format.js";
import { Button, Chip } from "../parts/controls.js";
import { Form } from "../parts/form/form.js";
import { problems } from "../parts/form/schema.js";
import { Icon } from "../parts/icons.js";
import { List } from "../parts/lists.js";
import { Empty, ErrorNote, Note } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Detail, Status, useSeconds } from "./tasks/detail.js";
import { begin, follow, forget, isOver, look, start, store } from "./tasks/state.js";
import { schemaOf, setValue, startOf, store as tools, valueOf } from "./tools/state.js";

const wide = () => innerWidth >= 720;
const ICONS = { completed: "check", failed: "close", cancelled: "stop", input_required: "question" };

function Row({ task }) {
  return html`<${Icon} name=${ICONS[task.status] ?? "spinner"} s /><span class="nm cut"
      >${task.tool || "a task of others"}</span
    ><${Status} task=${task} />
    <span class="d cut"
      >${[
        `${task.task}`,
        task.era,
        task.kind === "plain" ? "a plain call" : "",
        `${age(task.since)} ago`,
        isOver(task) ? "" : task.message,
      ]
        .filter(Boolean)
        .join(", ")}</span
    >`;
}

function Follow({ era, onBegun }) {
  const [id, setId] = useState("");
  const [error, setError] = useState(null);
  const send = () => {
    if (id.trim())
      follow(era, id.trim()).then(number => {
        setId("");
        setError(null);
        onBegun(number);
      }, setError);
  };
  return html`<div class="part">
    <h3>Follow a task by its id</h3>
    <div class="row">
      <div class="in grow">
        <input
          class="bare grow mono"
          aria-label="Id of a task"
          placeholder="from another client, or from earlier"
          spellcheck="false"
          autocomplete="off"
          value=${id}
          onInput=${event => setId(event.target.value)}
          onKeyDown=${event => {
            if (event.key === "Enter") {
              event.preventDefault();
              send();
            }
          }}
        />
      </div>
      <${Button} onClick=${send} reason=${id.trim() ? null : "Type the id first."}>Follow<//>
    </div>
    ${error && html`<${ErrorNote} error=${error} fact="It cannot be followed." />`}
  </div>`;
}

// It holds its own Ctrl Enter: a question that is open beside it must not be answered by that.
function Start({ era, facts, onBegun, onBack }) {
  const state = useStore(tools),
    chosen = useStore(store, each => each.tool)[era];
  const list = state.lists[era]?.tools ?? [];
  const tool = list.find(each => each.name === chosen) ?? list[0];
  const schema = schemaOf(tool),
    value = valueOf(state, tool);
  const found = useMemo(() => (tool ? problems(value, { type: "object", ...schema }, schema) : []), [tool, value]);
  const touched = tool && Object.hasOwn(state.values, tool.name);
  const wrong = Object.fromEntries(
    [...found]
      .reverse()
      .filter(({ reason }) => touched || reason !== "missing")
      .map(({ path, reason }) => [path, reason]),
  );
  const [error, setError] = useState(null);
  const run = () => {
    if (!tool) return false;
    begin(era, tool.name, value).then(number => {
      setError(null);
      onBegun(number);
    }, setError);
    return true;
  };
  useKeys({ "ctrl+enter": run });
  const choose = name => store.set(each => ({ tool: { ...each.tool, [era]: name } }));
  const onKeyDown = event => {
    if (keyName(event) === "ctrl+enter") {
      event.preventDefault();
      run();
    }
  };
  return html`<${Pane} label="Start a tool" class="t-form" onKeyDown=${onKeyDown}
    ><div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="grow">Start a tool</h2>
    </div>
    <div class="body stream">
      ${
        facts?.session &&
        html`<${Note} icon="question" fact="Sessions have no tasks."
          >A tool that is started here is a plain call with its progress. In the stateless era it is a task.<//
        >`
      }
      ${
        facts &&
        !facts.session &&
        !facts.offered &&
        html`<${Note} icon="question" fact="This server has no tasks.">What is started here is a plain call.<//>`
      }
      ${
        tool?.definition?.execution?.taskSupport === "required" &&
        html`<${Note} tone="warn" fact="It asks for a task of 2025-11-25."
          >The inspector has tasks of the stateless era only, so the server may refuse it.<//
        >`
      }
      ${error && html`<${ErrorNote} error=${error} fact="It could not be started." />`}
      ${
        tool
          ? html`<div class="field">
                <div class="lab">
                  <label for="task-tool"><b>tool</b></label>
                </div>
                <div class="in">
                  <select
                    class="bare mono"
                    id="task-tool"
                    value=${tool.name}
                    onChange=${event => choose(event.target.value)}
                  >
                    ${list.map(each => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
                  </select>
                </div>
                ${tool.about && html`<p class="help">${cut(tool.about.trim().split("\n")[0], 300)}</p>`}
              </div>
              <${Form}
                key=${tool.name}
                schema=${schema}
                value=${value}
                onChange=${next => setValue(tool.name, next)}
                wrong=${wrong}
                id="task"
              />`
          : html`<${Empty} icon="tool" title="No tools">This server has nothing that could be started in this era.<//>`
      }
      ${facts && !facts.session && facts.offered && html`<${Follow} era=${era} onBegun=${onBegun} />`}
    </div>
    <div class="bar">
      <${Button} primary icon="play" keys="Ctrl ↵" onClick=${run} reason=${tool ? null : "There is no tool."}
        >${touched && found.length ? "Start anyway" : "Start"}<//
      >${tool && html`<${Button} class="no-m" onClick=${() => setValue(tool.name, startOf(tool))}>Reset<//>`}
    </div><//
  >`;
}

function Panel() {
  const era = useStore(app, state => state.era),
    rest = useStore(app, state => state.route.rest);
  const { tasks, facts, error } = useStore(store);
  const [view, setView] = useState(rest ? "res" : "list");
  const list = useRef(null);
  const task = tasks.find(each => String(each.task) === rest),
    running = tasks.filter(each => !isOver(each)),
    over = tasks.filter(isOver);
  useSeconds(running.length > 0);
  useEffect(() => {
    if (!rest && !location.hash.includes("/") && tasks.length && wide()) go("tasks", String(tasks[0].task));
  }, [rest, tasks.length]);
  useEffect(() => {
    if (task) look(task.task);
  }, [task?.task]);
  useKeys({
    "/": () => {
      list.current?.focus();
    },
  });
  const onBegun = number => {
    go("tasks", String(number));
    setView("res");
  };
  const group = (key, label, items) => ({
    key,
    label,
    items,
    head:
      items.length > 0 &&
      html`<div class="group"><span class="grow">${label}</span><span class="num">${items.length}</span></div>`,
  });
  return html`<${Panes} id="tasks" class="p-tasks" title="Tasks" show=${`show-${view}`}>
    <${Pane} label="Tasks" class="t-list"
      ><div class="head">
        <h2 class="grow">Tasks</h2>
        ${running.length > 0 && html`<${Chip} tone="acc">${running.length} running<//>`}
      </div>
      ${error && html`<div class="pad"><${ErrorNote} error=${error} /></div>`}
      ${
        tasks.length
          ? html`<${List}
              label="Tasks"
              id="task"
              listRef=${list}
              keyOf=${each => String(each.task)}
              selected=${rest}
              rowClass="tool q"
              onSelect=${id => go("tasks", id)}
              onOpen=${() => setView("res")}
              row=${each => html`<${Row} task=${each} />`}
              groups=${[group("running", "Running", running), group("over", "Finished", over)]}
            />`
          : html`<div class="body">
              <${Empty} icon="clock" title="Nothing is started"
                >A tool that takes long runs here while you look elsewhere.<//
              >
            </div>`
      }
      <div class="bar">
        <${Button} class="only-m" primary icon="play" onClick=${() => setView("form")}>Start a tool<//
        ><span class="grow"></span>${over.length > 0 && html`<${Button} small onClick=${forget}>Clear finished<//>`}
      </div><//
    >
    <${Start} era=${era} facts=${facts[era]} onBegun=${onBegun} onBack=${() => setView("list")} />
    <${Pane} label=${task ? `Task ${task.task}` : "Task"} class="t-res"
      >${
        task
          ? html`<${Detail} key=${task.task} task=${task} onBack=${() => setView("list")} onAgain=${onBegun} />`
          : html`<div class="head only-m">
                <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
              </div>
              <div class="body">
                <${Empty} icon="clock" title="No task is chosen">Start a tool, or choose one at the left.<//>
              </div>`
      }<//
    ><//
  >`;
}

export const tasks = {
  Panel,
  start,
  keys: [
    ["Ctrl Enter", "start, answer"],
    ["R", "ask the server now"],
  ],
  count: () => {
    const all = useStore(store, state => state.tasks),
      waits = all.filter(each => each.status === "input_required").length;
    return waits ? { hot: waits } : all.filter(each => !isOver(each)).length;
  },
  finds: words =>
    store
      .get()
      .tasks.filter(each => `${each.tool} ${each.id ?? ""}`.toLowerCase().includes(words.toLowerCase()))
      .map(each => ({
        title: `${each.tool}, ${each.status}`,
        hint: `task ${each.task}`,
        icon: "clock",
        run: () => go("tasks", String(each.task)),
      })),
};
