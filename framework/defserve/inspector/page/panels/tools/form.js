// The middle pane: one tool, its form, and the call.
import { html, useEffect, useLayoutEffect, useMemo, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { cut, number } from "../../format.js";
import { app, toast, useStore } from "../../store.js";
import { Button, Chip, Copy, Tabs } from "../../parts/controls.js";
import { saveFile } from "../../parts/content.js";
import { fromJson, isScalar } from "../../parts/parsing.js";
import { Form } from "../../parts/form/form.js";
import { problems } from "../../parts/form/schema.js";
import { Mark } from "../../parts/icons.js";
import { Menu } from "../../parts/layers.js";
import { Empty } from "../../parts/notes.js";
import { inline } from "../../parts/markdown.js";
import { Pane } from "../../parts/panes.js";
import { Definition } from "./definition.js";
import { Latency } from "./latency.js";
import { running, schemaOf, setValue, startOf, store, valueOf } from "./state.js";

const LONGEST_ABOUT = 8000;
export const SAVED = "This is a saved session: there is no server to call";
const DECIDED = {
  approved: ["ok", "check", "granted"],
  denied: ["bad", "close", "denied"],
  deferred: ["warn", "clock", "asked when called"],
};

export function Facts({ tool }) {
  const { needs, guard, confirms, hints } = tool;
  const words = tool.mark
    ? []
    : [
        hints.readOnlyHint && "read-only",
        hints.destructiveHint && "destructive",
        hints.openWorldHint && "open world",
      ].filter(Boolean);
  const every = [
    ...needs.flatMap(({ name, decision }) => [
      html`<${Chip} tone="out" icon="key" key=${name}>needs ${name}<//>`,
      html`<${Chip} tone=${DECIDED[decision]?.[0]} icon=${DECIDED[decision]?.[1]} key=${name + decision}
        >${DECIDED[decision]?.[2] ?? decision}<//
      >`,
    ]),
    guard && html`<${Chip} tone="out" icon="shield" key="guard">guard: ${guard.replace(/_/g, " ")}<//>`,
    confirms && html`<${Chip} tone="out" icon="question" key="confirms">asks before it runs<//>`,
    ...words.map(word => html`<${Chip} tone="out" key=${word}>says it is ${word}<//>`),
  ].filter(Boolean);
  return every.length > 0 && html`<div class="facts">${every}</div>`;
}

// The arguments as JSON. What is not whole yet keeps the form as it was.
function Raw({ value, onChange }) {
  const [text, setText] = useState(() => JSON.stringify(value, null, 2));
  const [bad, setBad] = useState("");
  const inForm = JSON.stringify(value);
  useLayoutEffect(() => {
    try {
      if (JSON.stringify(fromJson(text)) === inForm) return;
    } catch {
      /* typed over */
    }
    setText(JSON.stringify(value, null, 2));
    setBad("");
  }, [inForm]);
  const set = given => {
    setText(given);
    try {
      const read = fromJson(given);
      const whole = !isScalar(read) && !Array.isArray(read);
      setBad(whole ? "" : "Arguments are one JSON object.");
      if (whole) onChange(read);
    } catch (error) {
      setBad(`This is not whole JSON yet: ${error.message}`);
    }
  };
  return html`<div class=${`in area${bad ? " err" : ""} rawbox`}>
      <textarea
        class="bare grow mono"
        aria-label="Arguments as JSON"
        spellcheck="false"
        rows="14"
        value=${text}
        aria-invalid=${String(!!bad)}
        onInput=${event => set(event.target.value)}
      ></textarea>
    </div>
    ${bad && html`<p class="help bad" role="status">${bad} The form stays as it was.</p>`}`;
}

const spelled = found => Object.fromEntries([...found].reverse().map(({ path, reason }) => [path, reason]));

// What the server itself found wrong in the last call of this tool, for the fields.
function told(call, value) {
  if (!call || call.state !== "failed" || JSON.stringify(call.arguments) !== JSON.stringify(value)) return [];
  const found = call.error?.problems ?? call.result?._meta?.["dev.defserve/error"]?.problems;
  return Array.isArray(found)
    ? found.map(({ field, reason }) => ({ path: String(field ?? ""), reason: String(reason) }))
    : [];
}

export function useSaved(tool, value, result) {
  const [saved, setSaved] = useState({ of: "", command: "", test: "" });
  const key = JSON.stringify([tool, value, !!result]);
  useEffect(() => {
    if (!tool) return undefined;
    let current = true;
    const timer = setTimeout(
      () =>
        ask("tools.save", { tool, arguments: value }).then(
          given => {
            if (current) setSaved({ ...given, of: tool });
          },
          () => {},
        ),
      120,
    );
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key]);
  return saved.of === tool ? saved : { command: "", test: "" }; // never the line of another tool
}

// Fetches a call as a test and gives it to the browser to save.
export async function saveTest(call) {
  const outcome = call.error ? { error: { message: call.error.message } } : call.result;
  const { test } = await ask("tools.save", { tool: call.tool, arguments: call.arguments, result: outcome });
  saveFile(`test_${call.tool.replace(/\W+/g, "_").toLowerCase()}.py`, "text/x-python", test);
}

export function ToolForm({ tool, name, tab, setTab, onCall, onBack, resultTab }) {
  const state = useStore(store);
  const isSaved = useStore(app, each => !!each.target?.saved);
  const value = valueOf(state, tool);
  const schema = schemaOf(tool);
  const lastCall = state.calls.find(call => call.tool === name);
  const found = useMemo(() => (tool ? problems(value, { type: "object", ...schema }, schema) : []), [tool, value]);
  const wrong = { ...spelled(found), ...spelled(told(lastCall, value)) };
  const saved = useSaved(tool && name, value);
  // What is missing is only told once something was typed, or a call was made.
  const [turn, setTurn] = useState(0);
  const touched = Object.hasOwn(state.values, name) || !!lastCall;
  const shownWrong = touched
    ? wrong
    : Object.fromEntries(Object.entries(wrong).filter(([, reason]) => reason !== "missing"));
  if (!tool) {
    return html`<${Pane} label="Tool" class="t-form"
      ><div class="head only-m"><${Button} plain icon="left" label="Back to the list" onClick=${onBack} /></div>
      <div class="body">
        <${Empty} icon="tool" title=${name ? `There is no tool ${name} here` : "No tool is chosen"}
          >${name ? "It may be in the other era." : "Choose one on the left."}<//
        >
      </div><//
    >`;
  }
  const busy = running(state)?.tool === name;
  const set = next => setValue(name, next);
  const reset = () => {
    set(startOf(tool));
    setTurn(turn + 1);
  };
  const saveCommand = async () => {
    await navigator.clipboard?.writeText(saved.command).catch(() => {});
    toast("The command is copied");
  };
  const test = () => saveTest(lastCall ?? { tool: name, arguments: value });
  return html`<${Pane} label=${name} class="t-form"
    ><div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="mono grow cut toolname">${name}</h2>
      <${Mark} risk=${tool.mark} word /><${Chip} tone="out" class="num">${number(tool.tokens)} tokens<//>
    </div>
    <div class="intro">
      ${tool.about && html`<div class="about">${inline(cut(tool.about.trim(), LONGEST_ABOUT))}</div>`}<${Facts}
        tool=${tool}
      />
    </div>
    <${Tabs}
      label="Tool"
      value=${tab}
      onChange=${setTab}
      tabs=${[
        ["form", "Form"],
        ["json", "JSON"],
        ["definition", "Definition"],
        ["latency", "Latency", "no-m"],
        ["result", resultTab, "only-m"],
      ]}
    />
    <div class="body" role="tabpanel" aria-label=${tab}>
      ${
        tab === "json"
          ? html`<${Raw} key=${`${name} ${turn}`} value=${value} onChange=${set} />`
          : tab === "definition"
            ? html`<${Definition} key=${name} tool=${tool} />`
            : tab === "latency"
              ? html`<${Latency} tool=${name} />`
              : html`<${Form}
                  key=${name}
                  schema=${schema}
                  value=${value}
                  onChange=${set}
                  wrong=${shownWrong}
                  id="arg"
                />`
      }
    </div>
    <div class="cmd no-m">
      <code class="cut grow" title=${saved.command} tabindex="0">${saved.command}</code
      ><${Copy} text=${saved.command} label="Copy the command" />
    </div>
    <div class="bar">
      <${Button} primary icon="play" busy=${busy} keys="Ctrl ↵" reason=${isSaved ? SAVED : null} onClick=${onCall}
        >${touched && found.length && !isSaved ? "Call anyway" : "Call"}<//
      ><${Button} class="no-m" onClick=${reset}>Reset<//><span class="grow"></span>
      <${Menu}
        icon="save"
        label="Save as"
        items=${[
          ["pytest test", test],
          ["defserve call line", saveCommand],
        ]}
        >Save as<//
      >
    </div><//
  >`;
}
