// The right pane: one question of each kind, with what can be answered.
import { html, useMemo, useState } from "../../vendor/preact.js";
import { useKeys } from "../../keys.js";
import { useStore } from "../../store.js";
import { answer, useSince } from "../../questions.js";
import { Button, Chip, Copy, Segments } from "../../parts/controls.js";
import { Form } from "../../parts/form/form.js";
import { initial, problems, resolve } from "../../parts/form/schema.js";
import { Icon } from "../../parts/icons.js";
import { Json } from "../../parts/json.js";
import { Messages } from "../../parts/messages.js";
import { Note } from "../../parts/notes.js";
import { draft, store } from "./state.js";

const useDraft = id => useStore(store, state => state.drafts)[id] ?? {};

function Choices({ primary, icon = "send", onSend, question, refuse }) {
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(null);
  const since = useSince(question);
  const give = given => {
    setBusy(true);
    answer(question, given)
      .then(
        ({ answered }) => {
          if (!answered) setFailed("This question is no longer open.");
        },
        error => setFailed(error.message),
      )
      .then(() => setBusy(false));
  };
  const send = () => {
    const given = onSend();
    if (given) give(given);
  };
  useKeys({ "ctrl+enter": send });
  return html`${failed && html`<p class="help bad pad" role="status">${failed}</p>`}
    <div class="bar wrap">
      <${Button} primary icon=${icon} busy=${busy} keys="Ctrl ↵" onClick=${send}>${primary}<//>
      ${
        refuse
          ? html`<${Button} onClick=${() => give({ refuse: true })}>Refuse<//>`
          : html`<${Button} onClick=${() => give({ action: "decline" })}>Decline<//
              ><${Button} onClick=${() => give({ action: "cancel" })}>Cancel<//>`
      }
      <span class="grow"></span
      ><span class="tiny faint no-m">${question.until ? since : "Nothing is answered by itself."}</span>
    </div>`;
}

export function FormQuestion({ question }) {
  const { id, message, schema } = question;
  const start = useMemo(() => initial(resolve(schema, schema), schema) ?? {}, [id]);
  const { value = start, touched } = useDraft(id);
  const found = useMemo(() => problems(value, { type: "object", ...schema }, schema), [value]);
  const wrong = Object.fromEntries(
    [...found]
      .reverse()
      .filter(({ reason }) => touched || reason !== "missing")
      .map(({ path, reason }) => [path, reason]),
  );
  // The first try of a form that nobody has filled in says what is missing: an answer cannot be taken back.
  const send = () =>
    touched || !found.length ? { action: "accept", content: value } : void draft(id, { value, touched: true });
  return html`<div class="body">
      <p class="asked">${message}</p>
      <${Form}
        schema=${schema}
        value=${value}
        onChange=${next => draft(id, { value: next, touched: true })}
        wrong=${wrong}
        id=${`q${id}`}
      />
    </div>
    <${Choices} question=${question} primary=${touched && found.length ? "Answer anyway" : "Answer"} onSend=${send} />`;
}

// What an address is, for a person to judge before it is opened.
function about(url) {
  try {
    const { protocol, host, hostname } = new URL(url);
    const usual =
      protocol === "https:" || (protocol === "http:" && /^(localhost|127\.0\.0\.1|\[::1\])$/.test(hostname));
    return {
      host,
      opens: protocol === "https:" || protocol === "http:",
      warning: usual
        ? null
        : protocol === "http:"
          ? "It is not encrypted."
          : `It starts with ${protocol}, which is not opened from here.`,
      odd: /xn--/.test(host) ? "Its name has letters that may look like others." : null,
    };
  } catch {
    return { host: "", opens: false, warning: "It is not an address that a browser understands.", odd: null };
  }
}

export function UrlQuestion({ question }) {
  const { message, url } = question;
  const { host, opens, warning, odd } = about(url);
  return html`<div class="body stream">
      <p class="asked">${message}</p>
      <div class="card linkcard">
        <div class="grow">
          <b>${host || "no host"}</b>
          <p class="mono small wraps">${url}</p>
        </div>
        <${Copy} text=${url} label="Copy the address" />
      </div>
      ${
        (warning || odd) &&
        html`<${Note} tone="warn" fact="Look at the address first.">${[warning, odd].filter(Boolean).join(" ")}<//>`
      }
      ${
        opens &&
        html`<p>
          <a class="btn" href=${url} target="_blank" rel="noopener noreferrer"><${Icon} name="link" s />Open ${host}</a>
        </p>`
      }
      <p class="dim">The server learns only whether you agreed to open it.</p>
    </div>
    <${Choices} question=${question} primary="Agree" icon="check" onSend=${() => ({ action: "accept" })} />`;
}

const ASKED = [
  ["maxTokens", "at most", "tokens"],
  ["temperature", "temperature", ""],
  ["toolChoice", "tool choice", ""],
];
const shown = value => (typeof value === "object" ? (value.mode ?? JSON.stringify(value)) : String(value));
const result = text => ({
  role: "assistant",
  content: { type: "text", text },
  model: "inspector",
  stopReason: "endTurn",
});

export function SamplingQuestion({ question }) {
  const { id, params } = question;
  const { as = "text", text = "", raw } = useDraft(id);
  const whole = raw ?? JSON.stringify(result(text), null, 2);
  let parsed;
  try {
    parsed = JSON.parse(whole);
  } catch {
    parsed = undefined;
  }
  const bad = as === "result" && (parsed === null || typeof parsed !== "object");
  const hints = (params.modelPreferences?.hints ?? []).map(hint => hint?.name).filter(Boolean);
  const set = change => draft(id, change);
  return html`<div class="body stream">
      <div class="facts">
        ${ASKED.filter(([name]) => params[name] != null).map(
          ([name, before, after]) =>
            html`<${Chip} tone="out" key=${name}>${before} ${shown(params[name])} ${after}<//>`,
        )}
        ${hints.map(name => html`<${Chip} tone="out" key=${name}>would like ${name}<//>`)}${
          params.tools?.length > 0 && html`<${Chip} tone="out" icon="tool">${params.tools.length} tools<//>`
        }
      </div>
      <${Messages} system=${params.systemPrompt} messages=${params.messages ?? []} />
      ${
        params.tools?.length > 0 &&
        html`<details>
          <summary>Tools it may call</summary>
          <${Json} value=${params.tools} label="Tools" />
        </details>`
      }
      <div class="part">
        <h3>
          <label for=${`q${id}-answer`}>Your answer as the model</label><span class="grow"></span
          ><${Segments}
            label="Answer with"
            options=${[
              ["text", "Text"],
              ["result", "Whole result"],
            ]}
            value=${as}
            onChange=${next => set({ as: next })}
          />
        </h3>
        ${
          as === "text"
            ? html`<div class="in area">
                <textarea
                  class="bare grow"
                  id=${`q${id}-answer`}
                  rows="5"
                  placeholder="What the model says"
                  value=${text}
                  onInput=${event => set({ text: event.target.value, raw: undefined })}
                ></textarea>
              </div>`
            : html`<div class=${`in area${bad ? " err" : ""}`}>
                  <textarea
                    class="bare grow mono"
                    id=${`q${id}-answer`}
                    rows="10"
                    spellcheck="false"
                    value=${whole}
                    aria-invalid=${String(bad)}
                    onInput=${event => set({ raw: event.target.value })}
                  ></textarea>
                </div>
                ${
                  bad &&
                  html`<p class="help bad" role="status">This is not whole JSON yet. Until it is, the text is sent.</p>`
                }`
        }
      </div>
    </div>
    <${Choices}
      question=${question}
      primary="Answer"
      refuse
      onSend=${() => (as === "result" && !bad ? { result: parsed } : { text })}
    />`;
}
