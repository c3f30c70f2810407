// Access entries (MGP): whether an agent may use a tool. The protocol asks about one agent at a time, so those asked
// about stay in the list.
import { html, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { createStore, useStore } from "../../store.js";
import { age } from "../../format.js";
import { useTicks } from "../../parts/ticks.js";
import { Button, Chip } from "../../parts/controls.js";
import { ErrorNote } from "../../parts/notes.js";

const MOST = 50;
const entries = createStore({ all: [] });
const keyOf = ({ agent, tool }) => JSON.stringify([agent, tool]);

function keep(about, said) {
  const row = { ...said, ...about, key: keyOf(about) }; // what was asked about stays, whatever the server says
  entries.set(({ all }) => {
    const at = all.findIndex(each => each.key === row.key);
    return { all: at < 0 ? [...all, row].slice(-MOST) : all.map((each, index) => (index === at ? row : each)) };
  });
}

const SOURCES = {
  default_policy: "the default",
  server_grant: "entry for every tool",
  tool_grant: "entry for this tool",
};

const LASTS = [
  ["", "for ever"],
  ["900", "for 15 minutes"],
  ["3600", "for an hour"],
  ["86400", "for a day"],
  ["2592000", "for 30 days"],
];
const leftOf = until => {
  const left = Date.parse(until) / 1000 - Date.now() / 1000;
  return Number.isNaN(left) ? "" : left > 0 ? `${age(0, left)} left` : "expired";
};

export function Access({ told }) {
  const { all } = useStore(entries);
  const [agent, setAgent] = useState("");
  const [tool, setTool] = useState("");
  const [lasts, setLasts] = useState("");
  useTicks(all.some(each => each.expires_at));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const can = told.sections.includes("access_control");
  // Does something, then asks how it is.
  const run = async (verb, about, more = {}) => {
    setBusy(true);
    setError(null);
    try {
      if (verb) await ask(verb, { era: told.era, ...about, ...more });
      keep(about, await ask("security.access", { era: told.era, ...about }));
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  const lasting = () => (lasts ? { seconds: Number(lasts) } : {});
  const about = { agent: agent.trim(), tool: tool.trim() };
  const reason = about.agent ? null : "Name an agent first";
  return html`<div class="head">
      <h2>Access</h2>
      <span class="grow"></span>
    </div>
    ${
      !can
        ? html`<p class="pad small dim">
            Nobody can see or change here who may use which tool of this server. Its author can allow it with${" "}
            <code>AccessPolicy(admins=[…])</code>.
          </p>`
        : html`<form
              class="asks"
              onSubmit=${event => {
                event.preventDefault();
                if (!reason) run(null, about);
              }}
            >
              <label class="in mono"
                ><span class="vh">Agent</span
                ><input
                  class="bare"
                  placeholder="agent.helper"
                  value=${agent}
                  spellcheck="false"
                  onInput=${event => setAgent(event.target.value)}
              /></label>
              <label class="in mono"
                ><span class="vh">Tool</span
                ><input
                  class="bare"
                  placeholder="every tool"
                  value=${tool}
                  spellcheck="false"
                  onInput=${event => setTool(event.target.value)}
              /></label>
              <label class="in pick"
                ><span class="vh">For how long</span
                ><select class="bare" value=${lasts} onChange=${event => setLasts(event.target.value)}>
                  ${LASTS.map(([seconds, words]) => html`<option key=${seconds} value=${seconds}>${words}</option>`)}
                </select></label
              >
              <${Button} type="submit" busy=${busy} reason=${reason}>Look up<//
              ><${Button}
                reason=${reason}
                onClick=${() => run("security.grant", about, { permission: "allow", ...lasting() })}
                >Allow<//
              >
              <${Button}
                reason=${reason}
                onClick=${() => run("security.grant", about, { permission: "deny", ...lasting() })}
                >Deny<//
              >
            </form>
            ${error && html`<div class="p12"><${ErrorNote} error=${error} /></div>`}
            ${
              all.length > 0 &&
              html`<div class="scrolls">
                <table>
                  <thead>
                    <tr>
                      <th class="first">agent</th>
                      <th>tool</th>
                      <th>may</th>
                      <th>because of</th>
                      <th class="last"><span class="vh">Revoke</span></th>
                    </tr>
                  </thead>
                  <tbody>
                    ${all.map(
                      each =>
                        html`<tr key=${each.key}>
                          <td class="first mono">${each.agent}</td>
                          <td class="mono dim">${each.tool || "every tool"}</td>
                          <td>
                            <${Chip} tone=${each.permission === "allow" ? "ok" : "bad"}>${String(each.permission)}<//>
                          </td>
                          <td class="dim">
                            ${SOURCES[each.source] ?? String(each.source)}${
                              each.granted_by ? `, by ${each.granted_by}` : ""
                            }${
                              each.expires_at &&
                              html`, <span class="nowrap" title=${each.expires_at}>${leftOf(each.expires_at)}</span>`
                            }
                          </td>
                          <td class="r last">
                            ${
                              each.source === (each.tool ? "tool_grant" : "server_grant") &&
                              html`<${Button}
                                small
                                plain
                                onClick=${() => run("security.revoke", { agent: each.agent, tool: each.tool })}
                                >Revoke<//
                              >`
                            }
                          </td>
                        </tr>`,
                    )}
                  </tbody>
                </table>
              </div>`
            }`
    }`;
}
