// The feature sets with their switches, and the scopes of those that have some.
import { html, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { Button, Chip, Segments, Switch } from "../../parts/controls.js";
import { colourOf, take } from "./model.js";

const WORDS = {
  "contextHooks.beforeInference": "before inference",
  "contextHooks.afterInference": "after inference",
  pushEvents: "push events",
  inferenceRequest: "inference",
  inferenceLifecycle: "inference ended",
  tools: "tools",
  modelInfo: "model info",
  "inferenceRequest.streaming": "inference",
};
const VERSIONS = [
  ["0.4", "0.4"],
  ["0.5", "0.5"],
];
const inWords = uses => [
  ...new Set(
    uses.map(
      use =>
        WORDS[use] ??
        (use.startsWith("contextHooks.beforeInference")
          ? "before inference"
          : use.startsWith("channels")
            ? "channel"
            : use),
    ),
  ),
];

function Scopes({ set, asked }) {
  const [pattern, setPattern] = useState("");
  const say = (allow, block) => take("live.scopes", { set: set.name, allow, block });
  const add = where => {
    const found = pattern.trim();
    if (!found) return;
    setPattern("");
    say(where === "allow" ? [...set.allow, found] : set.allow, where === "block" ? [...set.block, found] : set.block);
  };
  const row = (kind, tone, each) =>
    html`<li key=${kind + each}>
      <span class=${tone}>${kind}</span><code>${each}</code
      ><${Button}
        icon="close"
        plain
        small
        label=${`Take back ${kind} ${each}`}
        onClick=${() =>
          say(
            set.allow.filter(one => kind !== "allow" || one !== each),
            set.block.filter(one => kind !== "block" || one !== each),
          )}
      />
    </li>`;
  return html`<ul class="scopes small">
      ${set.allow.map(each => row("allow", "ok", each))}${set.block.map(each => row("block", "bad", each))}
      ${asked.map(
        each =>
          html`<li key=${each.number}>
            <span class="warn">asked</span><code>${each.label}</code
            ><span class="row gap4"
              ><${Button} small onClick=${() => ask("live.decide", { number: each.number, allow: true })}>Allow<//>
              <${Button} small plain onClick=${() => ask("live.decide", { number: each.number, allow: false })}
                >Refuse<//
              ></span
            >
          </li>`,
      )}
    </ul>
    <form
      class="scopeform"
      onSubmit=${event => {
        event.preventDefault();
        add("allow");
      }}
    >
      <label class="in mono"
        ><span class="vh">Pattern of scopes of ${set.name}</span
        ><input
          class="bare"
          placeholder="bed/*"
          value=${pattern}
          spellcheck="false"
          onInput=${event => setPattern(event.target.value)}
      /></label>
      <${Button} small type="submit">Allow<//><${Button} small onClick=${() => add("block")}>Block<//>
    </form>`;
}

// What a host of 0.5 has granted of what the server claims, and what the server said to it.
function Granted({ told: { granted, denied, receipt, polls } }) {
  const row = (words, tone, paths) =>
    paths.length > 0 &&
    html`<p class="small">
      <span class=${tone}>${words}</span> ${paths.map(path => html`<code key=${path} class="path">${path}</code> `)}
    </p>`;
  return html`<div class="granted" tabindex="0" role="region" aria-label="What is granted">
    ${row("Granted", "ok", granted)}${row("Not granted", "warn", denied)}
    ${
      receipt
        ? !receipt.accepted &&
          html`<p class="small bad">
            The server did not accept the policy${receipt.reason ? `: ${receipt.reason}` : ""}. It may do nothing.
          </p>`
        : !polls && html`<p class="small warn">The server has not answered the policy. It may do nothing.</p>`
    }
    ${receipt?.notes.map(note => html`<p class="small dim wraps" key=${note}>${note}</p>`)}
  </div>`;
}

export function Sets({ told, tabs }) {
  const on = told.sets.filter(each => each.enabled).length;
  const all = told.sets.map(each => each.name);
  return html`${tabs}
    <div class="head">
      <h2 class="grow">Feature sets</h2>
      <span class="tiny faint num">${on} of ${all.length} on</span>
      ${
        all.length > 0 &&
        html`<${Button} small plain onClick=${() => take("live.switch", { sets: all, on: on === 0 })}
          >${on ? "All off" : "All on"}<//
        >`
      }
    </div>
    <ul class="body flush">
      ${told.sets.map(
        set =>
          html`<li key=${set.name} class=${`fs ${colourOf(told, set.name)}${set.enabled ? "" : " off"}`}>
            <span class="sq"></span><code class="cut" title=${set.name}><b>${set.name}</b></code>
            <${Switch}
              label=${set.name}
              on=${set.enabled}
              onChange=${value => take("live.switch", { sets: [set.name], on: value })}
            />
            ${set.about && html`<span class="d">${set.about}</span>`}<span class="u"
              >${inWords(set.uses).map(
                use => html`<${Chip} key=${use}>${use}<//>`,
              )}${set.rollback && html`<${Chip}>state<//>`}${set.scoped && html`<${Chip}>scoped<//>`}${set.missing.map(
                path =>
                  html`<${Chip} tone="warn" key=${path} title="This host has not granted it, so the set cannot act."
                    >not granted: ${path}<//
                  >`,
              )}</span
            >
            ${
              set.scoped &&
              html`<div class="d">
                <${Scopes} set=${set} asked=${told.asked.filter(each => each.set === set.name)} />
              </div>`
            }
          </li>`,
      )}
    </ul>
    ${told.granted && html`<${Granted} told=${told} />`}
    <div class="bar tiny dim">
      <span class="grow">Off means silent: no tools, hooks or events.</span
      ><span title="The version of MCPL that the server answered with">MCPL ${told.version}</span>
      <${Segments}
        label="The version that is offered"
        options=${VERSIONS}
        value=${told.offered}
        onChange=${version => take("live.offer", { version })}
      />
    </div>`;
}
