// Event channels (MGP): what the server tells whoever listens. Nobody listens before the button is pressed.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { clock } from "../../format.js";
import { Button, Chip } from "../../parts/controls.js";
import { ErrorNote } from "../../parts/notes.js";

const MOST = 50;
const TONES = { warning: "warn", error: "bad", critical: "bad", alert: "bad", emergency: "bad" };

export function Events({ told }) {
  const [isOn, setOn] = useState(false);
  const [pattern, setPattern] = useState("*");
  const [channels, setChannels] = useState([]);
  const [rows, setRows] = useState([]);
  const [error, setError] = useState(null);
  const can = told.sections.includes("events");
  useEffect(() => {
    if (!isOn || !can) return undefined;
    let here = true;
    setError(null);
    const asked = ask("security.events", { era: told.era, pattern: pattern.trim() || "*" }, part => {
      if (!here) return;
      if (part.event) setRows(all => [part.event, ...all].slice(0, MOST));
      else setChannels(part.channels);
    });
    asked.catch(failed => {
      if (here) {
        setError(failed);
        setOn(false);
      }
    });
    return () => {
      here = false;
      asked.cancel();
    };
  }, [isOn, told.era, can]);
  return html`<div class="head">
      <h2>Event channels</h2>
      <span class="dim small cut">${isOn ? channels.join(", ") : ""}</span><span class="grow"></span>
    </div>
    ${
      !can
        ? html`<p class="pad small dim">This server has no event channels for this client.</p>`
        : html`<form
              class="listens"
              onSubmit=${event => {
                event.preventDefault();
                setOn(!isOn);
              }}
            >
              <label class="in mono"
                ><span class="vh">Pattern of channels</span
                ><input
                  class="bare"
                  value=${pattern}
                  disabled=${isOn}
                  spellcheck="false"
                  onInput=${event => setPattern(event.target.value)}
              /></label>
              <${Button} type="submit" icon=${isOn ? "stop" : "live"}>${isOn ? "Stop" : "Listen"}<//>
            </form>
            ${error && html`<div class="pad"><${ErrorNote} error=${error} /></div>`}
            ${
              rows.length > 0 &&
              html`<ul class="heard small">
                ${rows.map(
                  row =>
                    html`<li key=${`${row.channel} ${row.sequence} ${row.at}`}>
                      <span class="num faint">${clock(row.at, false)}</span><code>${row.channel}</code
                      ><${Chip} tone=${TONES[row.severity]}>${row.severity}<//
                      ><code class="dim cut" title=${JSON.stringify(row.data)}>${JSON.stringify(row.data)}</code>
                    </li>`,
                )}
              </ul>`
            }`
    }`;
}
