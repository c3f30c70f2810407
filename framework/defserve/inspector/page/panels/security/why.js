// Whether a caller may call a tool, and why: the steps that `defserve why` prints. The server must run in this process.
import { html, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { Button, Chip } from "../../parts/controls.js";
import { ErrorNote } from "../../parts/notes.js";

const MARKS = { passed: ["✓", "ok"], refused: ["✗", "bad"], depends: ["?", "warn"] };
const FIELDS = [
  ["caller", "Caller", "pipe, anonymous, a key"],
  ["tool", "Tool", "tool"],
  ["scopes", "Scopes of any other caller", "scopes, if any"],
];

function Steps({ told }) {
  return html`<p class="whyhead">
      <${Chip} tone=${told.would_run ? "ok" : "bad"}>${told.verdict}<//> <span class="small dim">${told.caller}</span>
    </p>
    <div class="whysteps">
      ${told.steps.map(({ gate, outcome, sentence, fix }) => {
        const [mark, tone] = MARKS[outcome] ?? ["?", "dim"];
        return html`<span class=${tone}>${mark}</span><b>${gate}</b
          ><span class="dim">${sentence}${fix && html`<span class="fix"><b>fix:</b> ${fix}</span>`}</span>`;
      })}
    </div>`;
}

export function Why() {
  const [about, setAbout] = useState({ caller: "anonymous", tool: "", scopes: "" });
  const [told, setTold] = useState(null);
  const [error, setError] = useState(null);
  const reason = about.caller.trim() && about.tool.trim() ? null : "Name a caller and a tool first";
  const look = async event => {
    event.preventDefault();
    if (reason) return;
    setError(null);
    setTold(await ask("security.why", about).catch(failed => void setError(failed)));
  };
  return html`<div class="head">
      <h2>Who may call</h2>
      <span class="grow"></span>
    </div>
    <form class="asks" onSubmit=${look}>
      ${FIELDS.map(
        ([name, words, example]) =>
          html`<label class="in mono" key=${name}
            ><span class="vh">${words}</span
            ><input
              class="bare"
              placeholder=${example}
              value=${about[name]}
              spellcheck="false"
              onInput=${event => setAbout({ ...about, [name]: event.target.value })}
          /></label>`,
      )}
      <${Button} type="submit" reason=${reason}>Explain<//>
    </form>
    ${error ? html`<div class="p12"><${ErrorNote} error=${error} /></div>` : told && html`<${Steps} told=${told} />`}`;
}
