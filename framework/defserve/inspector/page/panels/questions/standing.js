// The answers that stand: the roots that servers may ask for, and a model made of rules.
import { html, useLayoutEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { useKeys } from "../../keys.js";
import { useStore } from "../../store.js";
import { Button, Switch } from "../../parts/controls.js";
import { ErrorNote, Note } from "../../parts/notes.js";
import { store } from "./state.js";

// A copy to edit of what the host holds. It starts anew when that changes.
function useEdited(kept, save) {
  const [edited, setEdited] = useState(kept);
  const [error, setError] = useState(null);
  const key = JSON.stringify(kept);
  useLayoutEffect(() => {
    setEdited(kept);
    setError(null);
  }, [key]);
  const changed = JSON.stringify(edited) !== key;
  const keep = () => {
    if (changed)
      save(edited).then(told => {
        store.set(told);
        setError(null);
      }, setError);
  };
  useKeys({ "ctrl+enter": keep });
  return { edited, setEdited, changed, keep, error, reset: () => setEdited(kept) };
}

const Foot = ({ changed, keep, reset }) =>
  html`<div class="bar">
    <${Button} primary icon="check" keys="Ctrl ↵" onClick=${keep} reason=${changed ? null : "Nothing was changed."}
      >Keep<//
    >
    <${Button} onClick=${reset} reason=${changed ? null : "Nothing was changed."}>Reset<//>
  </div>`;

const Input = ({ label, value, onInput, placeholder, mono }) =>
  html`<div class="in">
    <input
      class=${`bare grow${mono ? " mono" : ""}`}
      aria-label=${label}
      placeholder=${placeholder}
      value=${value}
      spellcheck="false"
      autocomplete="off"
      onInput=${event => onInput(event.target.value)}
    />
  </div>`;

export function Roots() {
  const kept = useStore(store, state => state.roots);
  const { edited, setEdited, error, ...foot } = useEdited(kept, roots =>
    ask("questions.roots", { roots: roots.filter(root => root.uri) }),
  );
  const set = (at, change) => setEdited(edited.map((root, index) => (index === at ? { ...root, ...change } : root)));
  const odd = edited.filter(root => root.uri && !root.uri.startsWith("file://"));
  return html`<div class="body stream">
      <p>
        A server that asks where it may work gets this list, in both eras. A server with a session is told when it
        changes.
      </p>
      ${error && html`<${ErrorNote} error=${error} />`}
      ${edited.length === 0 && html`<p class="dim">There are no roots. A server that asks gets an empty list.</p>`}
      ${edited.map(
        (root, at) =>
          html`<div class="rootrow" key=${at}>
            <${Input}
              mono
              label=${`URI of root ${at + 1}`}
              placeholder="file:///home/me/project"
              value=${root.uri}
              onInput=${uri => set(at, { uri })}
            />
            <${Input}
              label=${`Name of root ${at + 1}`}
              placeholder="name"
              value=${root.name ?? ""}
              onInput=${name => set(at, { name: name || undefined })}
            /><${Button}
              plain
              icon="close"
              label=${`Remove root ${at + 1}`}
              onClick=${() => setEdited(edited.filter((_, index) => index !== at))}
            />
          </div>`,
      )}
      <div><${Button} icon="plus" onClick=${() => setEdited([...edited, { uri: "" }])}>Add a root<//></div>
      ${
        odd.length > 0 &&
        html`<${Note} tone="warn" fact="Roots start with file://.">A server may refuse ${odd[0].uri}.<//>`
      }
    </div>
    <${Foot} ...${foot} />`;
}

export function Model() {
  const kept = useStore(store, state => state.model);
  const { edited, setEdited, error, ...foot } = useEdited(kept, model => ask("questions.model", model));
  const setRule = (at, change) =>
    setEdited({ ...edited, rules: edited.rules.map((rule, index) => (index === at ? { ...rule, ...change } : rule)) });
  return html`<div class="body stream">
      <div class="row">
        <${Switch} label="The script answers" on=${edited.on} onChange=${on => setEdited({ ...edited, on })} /><b
          >The script answers</b
        >
      </div>
      <p>
        While it is on, the first rule whose text is in the newest message answers for the model. If none fits, you are
        asked. An empty text always fits.
      </p>
      ${error && html`<${ErrorNote} error=${error} />`}
      ${edited.rules.map(
        (rule, at) =>
          html`<div class="card rule" key=${at}>
            <div class="row">
              <span class="tiny dim rulelabel">If it has</span
              ><${Input}
                label=${`Text of rule ${at + 1}`}
                placeholder="anything"
                value=${rule.when}
                onInput=${when => setRule(at, { when })}
              />
              <${Button}
                plain
                icon="close"
                label=${`Remove rule ${at + 1}`}
                onClick=${() => setEdited({ ...edited, rules: edited.rules.filter((_, index) => index !== at) })}
              />
            </div>
            <div class="row top">
              <span class="tiny dim rulelabel">say</span>
              <div class="in area">
                <textarea
                  class="bare grow"
                  rows="2"
                  aria-label=${`Answer of rule ${at + 1}`}
                  value=${rule.say}
                  onInput=${event => setRule(at, { say: event.target.value })}
                ></textarea>
              </div>
            </div>
          </div>`,
      )}
      <div>
        <${Button}
          icon="plus"
          onClick=${() => setEdited({ ...edited, rules: [...edited.rules, { when: "", say: "" }] })}
          >Add a rule<//
        >
      </div>
    </div>
    <${Foot} ...${foot} />`;
}
