// A form made from a JSON Schema. The form and its JSON are one value: every change gives a new value to `onChange`.
import { html, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { bytes, decodedSize } from "../../format.js";
import { Button, Segments, Switch } from "../controls.js";
import { Icon } from "../icons.js";
import { fromJson, own, typedNumber } from "../parsing.js";
import { accepts, boundWords, branchWords, choiceWords, initial, kindOf, resolve, spell, typeWords } from "./schema.js";

const SHORT = ["number", "date", "time", "moment", "enum"];
const LARGEST_FILE = 8000000;
const LONGEST_NAME = 800; // characters, as it is written in a URI

// `wrong`: path → what is wrong there. `only` shows no more than these names.
export function Form({ schema, value, onChange, wrong = {}, id = "f" }) {
  const root = schema;
  const whole = resolve(schema, root);
  if (kindOf(whole, root) !== "object" || !Object.keys(whole.properties).length) {
    return whole.properties || whole.additionalProperties === false
      ? html`<p class="dim">It takes no arguments.</p>`
      : html`<${Any} path="" id=${id} value=${value} onChange=${onChange} label="Arguments" />`;
  }
  return html`<div class="form">
    ${wrong[""] && html`<p class="help bad" role="status">${wrong[""]}</p>`}<${Members}
      schema=${whole}
      root=${root}
      value=${value ?? {}}
      onChange=${onChange}
      path=""
      wrong=${wrong}
      id=${id}
    />
  </div>`;
}

// The fields of an object; short ones stand two in a row.
function Members({ schema, root, value, onChange, path, wrong, id }) {
  const needed = schema.required ?? [];
  const rows = [];
  for (const [name, each] of Object.entries(schema.properties)) {
    const inner = resolve(each, root);
    const kind = kindOf(inner, root);
    if (kind === "const") continue;
    const set = next => {
      const { [name]: _, ...rest } = value;
      const whole = next === undefined ? rest : { ...value, [name]: next };
      onChange(whole);
    };
    const field = html`<${Field}
      key=${name}
      name=${name}
      schema=${inner}
      root=${root}
      kind=${kind}
      value=${own(value, name)}
      onChange=${set}
      required=${needed.includes(name)}
      path=${spell(path, name)}
      wrong=${wrong}
      id=${`${id}-${name.replace(/\W/g, "_")}`}
    />`;
    const last = rows.at(-1);
    if (SHORT.includes(kind) && last?.short && last.fields.length < 2) last.fields.push(field);
    else rows.push({ short: SHORT.includes(kind), fields: [field] });
  }
  return rows.map((row, at) =>
    row.fields.length > 1 ? html`<div class="two" key=${at}>${row.fields}</div>` : row.fields[0],
  );
}

const message = (wrong, path) => own(wrong, path) && `${path}: ${wrong[path]}`;

function Label({ name, id, words, required, schema, children }) {
  const bounds = boundWords(schema);
  return html`<div class="lab">
    <label for=${id}><b>${name}</b></label
    ><span class="t">${words}</span
    >${bounds && html`<span class="t">${bounds}</span>`}${required && html`<span class="req">required</span>`}
    ${children}
  </div>`;
}

function Field(props) {
  const { name, schema, root, kind, value, onChange, required, path, wrong, id } = props;
  const problem = message(wrong, path),
    helpId = `${id}-help`;
  const help = html`${schema.description && kind !== "boolean" && html`<p class="help">${schema.description}</p>`}${
    problem && html`<p class="help bad" id=${helpId}>${problem}</p>`
  }`;
  const inner = { ...props, err: !!problem, described: problem ? helpId : null };
  if (kind === "object" || kind === "map" || kind === "list") {
    const absent = value === undefined || value === null;
    const add = () =>
      onChange(initial({ ...schema, optional: false, default: undefined }, root) ?? (kind === "list" ? [] : {}));
    return html`<fieldset id=${id} aria-label=${name}>
      <div class="lab">
        <b>${name}</b
        ><span class="t">${typeWords(schema, root)}</span
        >${boundWords(schema) && html`<span class="t">${boundWords(schema)}</span>`}<span class="grow"></span>${
          required
            ? html`<span class="req">required</span>`
            : absent
              ? html`<${Button} small icon="plus" onClick=${add}>Add ${name}<//>`
              : html`<span class="tiny faint">optional</span
                  ><${Button}
                    small
                    plain
                    icon="close"
                    label=${`Leave out ${name}`}
                    onClick=${() => onChange(undefined)}
                  />`
        }
      </div>
      ${schema.description && html`<p class="help">${schema.description}</p>`}${
        absent && required && kind !== "list" && html`<${Button} small icon="plus" onClick=${add}>Add ${name}<//>`
      }
      ${
        !absent &&
        (kind === "object"
          ? html`<div class="inside">
              <${Members}
                schema=${schema}
                root=${root}
                value=${typeof value === "object" ? value : {}}
                onChange=${onChange}
                path=${path}
                wrong=${wrong}
                id=${id}
              />
            </div>`
          : kind === "map"
            ? html`<${Entries} ...${inner} />`
            : html`<${Items} ...${inner} />`)
      }
      ${problem && html`<p class="help bad">${problem}</p>`}
    </fieldset>`;
  }
  if (kind === "boolean") {
    return html`<div class="field">
      <div class="row">
        <${Switch} id=${id} label=${name} on=${value === true} onChange=${onChange} />
        <div class="lab">
          <label for=${id}><b>${name}</b></label
          ><span class="t">boolean</span>
        </div>
        <span class="help">${schema.description}</span>
      </div>
      ${problem && html`<p class="help bad">${problem}</p>`}
    </div>`;
  }
  const Control = CONTROLS[kind] ?? Any;
  return html`<div class="field">
    <${Label} name=${name} id=${id} words=${typeWords(schema, root)} required=${required} schema=${schema} />
    <${Control} ...${inner} />${help}
  </div>`;
}

const box = (err, more = "") => `in ${err ? "err" : ""} ${more}`;

function Text({ schema, value, onChange, id, err, described, required, kind }) {
  const set = text => onChange(text === "" && !(required && kind === "text") ? undefined : text);
  const shown = typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  const long =
    shown.length > 60 ||
    shown.includes("\n") ||
    ["multiline", "textarea"].includes(schema.format) ||
    (schema.maxLength ?? 0) > 200;
  const secret = schema.format === "password" || schema.writeOnly;
  const same = {
    id,
    class: "bare grow",
    value: shown,
    spellcheck: "false",
    "aria-invalid": String(err),
    "aria-describedby": described,
    placeholder:
      schema.examples?.[0] != null ? String(schema.examples[0]) : schema.default != null ? String(schema.default) : "",
    onInput: event => set(event.target.value),
  };
  return long
    ? html`<div class=${box(err, "area")}><textarea rows="4" ...${same}></textarea></div>`
    : html`<div class=${box(err)}><input type=${secret ? "password" : "text"} autocomplete="off" ...${same} /></div>`;
}

// A text field, so that a wrong number can be sent too: refusals are worth testing.
function Figure({ value, onChange, id, err, described }) {
  const [text, setText] = useState(value === undefined ? "" : String(value));
  useLayoutEffect(() => {
    if (typedNumber(text) !== value) setText(value === undefined || value === null ? "" : String(value));
  }, [value]);
  const set = given => {
    setText(given);
    onChange(typedNumber(given));
  };
  return html`<div class=${box(err)}>
    <input
      class="bare grow num"
      id=${id}
      inputmode="decimal"
      autocomplete="off"
      value=${text}
      aria-invalid=${String(err)}
      aria-describedby=${described}
      onInput=${event => set(event.target.value)}
    />
  </div>`;
}

const TYPES = { date: "date", time: "time", moment: "datetime-local" };
function Day({ value, onChange, id, err, described, kind }) {
  const given =
    typeof value === "string" ? (kind === "moment" ? value.replace(/(\.\d+)?(Z|[+-]\d\d:?\d\d)?$/, "") : value) : "";
  const odd = given !== "" && !/^\d/.test(given);
  return html`<div class=${box(err)}>
    <input
      class="bare grow num"
      id=${id}
      type=${odd ? "text" : TYPES[kind]}
      step="1"
      value=${given}
      aria-invalid=${String(err)}
      aria-describedby=${described}
      onInput=${event => onChange(event.target.value === "" ? undefined : event.target.value)}
    />
  </div>`;
}

function Choice({ schema, value, onChange, id, err, described, required }) {
  const at = schema.enum.findIndex(each => JSON.stringify(each) === JSON.stringify(value));
  return html`<div class=${box(err)}>
    <select
      class="bare grow"
      id=${id}
      value=${String(at)}
      aria-invalid=${String(err)}
      aria-describedby=${described}
      onChange=${event => onChange(schema.enum[event.target.value])}
    >
      ${
        (!required || at < 0) &&
        html`<option value="-1">${value !== undefined && at < 0 ? JSON.stringify(value) : "not given"}</option>`
      }
      ${schema.enum.map(
        (each, index) => html`<option value=${String(index)} key=${index}>${choiceWords(schema, index)}</option>`,
      )}
    </select>
  </div>`;
}

function Texts({ value, onChange, id, err, described }) {
  const [text, setText] = useState("");
  const list = Array.isArray(value) ? value : [];
  const add = () => {
    if (text.trim()) {
      onChange([...list, text.trim()]);
      setText("");
    }
  };
  const remove = at => onChange(list.filter((_, index) => index !== at));
  return html`<div class=${box(err, "chips")}>
    ${list.map(
      (each, at) =>
        html`<span class="chip" key=${at}
          >${typeof each === "string" ? each : JSON.stringify(each)}
          <button type="button" class="x" aria-label=${`Remove ${each}`} onClick=${() => remove(at)}>
            <${Icon} name="close" s /></button
        ></span>`,
    )}
    <input
      class="bare grow"
      id=${id}
      value=${text}
      placeholder=${list.length ? "add another" : "add one, Enter"}
      autocomplete="off"
      spellcheck="false"
      aria-invalid=${String(err)}
      aria-describedby=${described}
      onInput=${event => setText(event.target.value)}
      onBlur=${add}
      onKeyDown=${event => {
        if ((event.key === "Enter" && !event.ctrlKey) || event.key === ",") {
          event.preventDefault();
          add();
        }
        if (event.key === "Backspace" && !text && list.length) remove(list.length - 1);
      }}
    />
  </div>`;
}

function Choices({ schema, root, value, onChange, id, name }) {
  const list = Array.isArray(value) ? value : [];
  const items = resolve(schema.items, root),
    options = items.enum;
  const toggle = each => onChange(list.includes(each) ? list.filter(one => one !== each) : [...list, each]);
  return html`<div class="row wrap gap4" id=${id} role="group" aria-label=${name}>
    ${options.map(
      (each, at) =>
        html`<button
          type="button"
          key=${at}
          class=${`chip${list.includes(each) ? " acc" : ""}`}
          aria-pressed=${String(list.includes(each))}
          onClick=${() => toggle(each)}
        >
          ${choiceWords(items, at)}
        </button>`,
    )}
  </div>`;
}

// `takesUri`: a data: URI says also how the file is called, and what it is.
function File({ schema, value, onChange, id, err, name, takesUri }) {
  const [about, setAbout] = useState(null);
  const [over, setOver] = useState(false);
  const [problem, setProblem] = useState("");
  const input = useRef(null);
  const take = file => {
    if (!file) return;
    if (file.size > LARGEST_FILE) {
      setProblem(`${file.name} is larger than ${bytes(LARGEST_FILE)}.`);
      return;
    }
    setProblem("");
    const reader = new FileReader();
    reader.onload = () => {
      setAbout(`${file.name}, ${bytes(file.size)}`);
      const uri = String(reader.result),
        called = encodeURIComponent(file.name),
        known = called.length <= LONGEST_NAME ? `;name=${called};base64,` : ";base64,";
      onChange(takesUri ? uri.replace(";base64,", known) : (uri.split(",")[1] ?? ""));
    };
    reader.readAsDataURL(file);
  };
  const size = decodedSize(String(value).split(",").pop());
  const clear = () => {
    setAbout(null);
    if (input.current) input.current.value = "";
    onChange(undefined);
  };
  return html`<div
      class=${box(err, `drop${over ? " over" : ""}`)}
      onDragOver=${event => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave=${() => setOver(false)}
      onDrop=${event => {
        event.preventDefault();
        setOver(false);
        take(event.dataTransfer.files[0]);
      }}
    >
      <${Icon} name="page" s />
      <label class="ph grow cut" for=${id}
        >${value ? (about ?? `${bytes(size)}, base64`) : "Drop a file or choose one"}</label
      >
      <input
        type="file"
        class="vh"
        id=${id}
        accept=${schema.contentMediaType}
        aria-label=${name}
        ref=${input}
        onChange=${event => take(event.target.files[0])}
      />
      ${value && html`<${Button} small plain icon="close" label="Remove the file" onClick=${clear} />`}
    </div>
    ${problem && html`<p class="help bad">${problem}</p>`}`;
}

function Union(props) {
  const { schema, root, value, onChange, path, wrong, id, name } = props;
  const fitting = schema.branches.findIndex(branch => value !== undefined && accepts(value, branch, root));
  const [chosen, setChosen] = useState(Math.max(0, fitting));
  const at = fitting >= 0 && !(value !== undefined && accepts(value, schema.branches[chosen], root)) ? fitting : chosen;
  const branch = resolve(schema.branches[at], root),
    kind = kindOf(branch, root);
  const pick = next => {
    setChosen(next);
    onChange(initial(schema.branches[next], root));
  };
  const options = schema.branches.map((each, index) => [index, branchWords(each, root)]);
  const inside = { ...props, schema: branch, kind, takesUri: "x-mcp-file" in schema };
  const Control = CONTROLS[kind] ?? Any;
  const object = value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
  return html`${
    options.length <= 4
      ? html`<${Segments} label=${`Kind of ${name}`} class="start" options=${options} value=${at} onChange=${pick} />`
      : html`<div class="in">
          <select
            class="bare grow"
            aria-label=${`Kind of ${name}`}
            value=${String(at)}
            onChange=${event => pick(Number(event.target.value))}
          >
            ${options.map(([index, words]) => html`<option value=${String(index)}>${words}</option>`)}
          </select>
        </div>`
  }
  ${
    kind === "object"
      ? html`<div class="inside ruled">
          <${Members}
            schema=${branch}
            root=${root}
            value=${object}
            onChange=${onChange}
            path=${path}
            wrong=${wrong}
            id=${id}
          />
        </div>`
      : kind === "map"
        ? html`<${Entries} ...${inside} />`
        : kind === "list"
          ? html`<${Items} ...${inside} />`
          : kind === "boolean"
            ? html`<${Switch} label=${name} on=${value === true} onChange=${onChange} />`
            : html`<${Control} ...${inside} key=${at} />`
  }`;
}

function Items({ schema, root, value, onChange, path, wrong, id, name }) {
  const list = Array.isArray(value) ? value : [];
  const items = resolve(schema.items, root),
    kind = kindOf(items, root);
  const set = (at, next) => onChange(list.map((each, index) => (index === at ? next : each)));
  return html`<div class="inside">
    ${list.map(
      (each, at) =>
        html`<div class="item" key=${at}>
          <div class="grow">
            <${Field}
              name=${`${name}[${at}]`}
              schema=${items}
              root=${root}
              kind=${kind}
              value=${each}
              onChange=${next => set(at, next === undefined ? null : next)}
              required=${true}
              path=${spell(path, at)}
              wrong=${wrong}
              id=${`${id}-${at}`}
            />
          </div>
          <${Button}
            small
            plain
            icon="close"
            label=${`Remove ${name}[${at}]`}
            onClick=${() => onChange(list.filter((_, index) => index !== at))}
          />
        </div>`,
    )}
    <${Button} small icon="plus" onClick=${() => onChange([...list, initial(items, root) ?? null])}
      >Add ${items.title ?? "an item"}<//
    >
  </div>`;
}

function Entries({ schema, root, value, onChange, path, wrong, id }) {
  const object = value !== null && typeof value === "object" ? value : {};
  const [fresh, setFresh] = useState("");
  const given = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
  const items = resolve(given, root),
    kind = kindOf(items, root);
  const set = (name, next) => {
    const { [name]: _, ...rest } = object;
    onChange(next === undefined ? rest : { ...object, [name]: next });
  };
  const add = () => {
    if (fresh && !Object.hasOwn(object, fresh)) {
      set(fresh, initial(items, root) ?? (kind === "text" ? "" : null));
      setFresh("");
    }
  };
  return html`<div class="inside">
    ${Object.entries(object).map(
      ([name, each]) =>
        html`<div class="item" key=${name}>
          <div class="grow">
            <${Field}
              name=${name}
              schema=${items}
              root=${root}
              kind=${kind}
              value=${each}
              onChange=${next => set(name, next === undefined ? "" : next)}
              required=${true}
              path=${spell(path, name)}
              wrong=${wrong}
              id=${`${id}-${name.replace(/\W/g, "_")}`}
            />
          </div>
          <${Button} small plain icon="close" label=${`Remove ${name}`} onClick=${() => set(name, undefined)} />
        </div>`,
    )}
    <div class="row">
      <div class="in">
        <input
          class="bare grow"
          aria-label="Name of a new member"
          placeholder="name of a new member"
          value=${fresh}
          onInput=${event => setFresh(event.target.value)}
          onKeyDown=${event => {
            if (event.key === "Enter") {
              event.preventDefault();
              add();
            }
          }}
        />
      </div>
      <${Button} icon="plus" onClick=${add} reason=${fresh ? null : "give it a name"}>Add<//>
    </div>
  </div>`;
}

// Anything, as JSON.
function Any({ value, onChange, id, label }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [bad, setBad] = useState(false);
  const set = given => {
    setText(given);
    try {
      onChange(given.trim() === "" ? undefined : fromJson(given));
      setBad(false);
    } catch {
      setBad(true);
    }
  };
  return html`<div class=${box(bad, "area")}>
      <textarea
        class="bare grow mono"
        rows="3"
        id=${id}
        aria-label=${label}
        spellcheck="false"
        placeholder="JSON"
        value=${text}
        onInput=${event => set(event.target.value)}
      ></textarea>
    </div>
    ${bad && html`<p class="help bad">This is not whole JSON yet.</p>`}`;
}

const CONTROLS = {
  text: Text,
  number: Figure,
  date: Day,
  time: Day,
  moment: Day,
  enum: Choice,
  texts: Texts,
  choices: Choices,
  file: File,
  union: Union,
  any: Any,
};
