// The hook playground: one turn without a model. Place is position, colour is the feature set.
import { html, useState } from "../../vendor/preact.js";
import { go, useStore } from "../../store.js";
import { duration, number, plural } from "../../format.js";
import { Button, Chip, Segments } from "../../parts/controls.js";
import { ErrorNote, Note } from "../../parts/notes.js";
import { colourOf, live, run } from "./model.js";

const about = text => Math.max(1, Math.round(text.length / 4)); // tokens, estimated
const textOf = content => content.map(each => (each.type === "text" ? each.text : `[${each.type}]`)).join("\n");
const SLOTS = [
  ["system", "system"],
  ["beforeUser", "before user"],
  ["user", "user"],
  ["afterUser", "after user"],
];

// A hook's own words about what it did: short values are chips, the rest is their hint.
function Facts({ metadata }) {
  return Object.entries(metadata)
    .slice(0, 3)
    .map(([name, value]) => {
      const text =
        typeof value === "string" ? value : Array.isArray(value) ? value.map(String).join(", ") : JSON.stringify(value);
      return html`<${Chip} tone="out" key=${name} title=${`${name}: ${text}`}
        ><span class="cut fact">${name}: ${text.length > 24 ? text.slice(0, 23) + "…" : text}</span><//
      >`;
    });
}

function Injected({ told, each }) {
  const isOff = !told.sets.find(set => set.name === each.set)?.enabled,
    text = textOf(each.content);
  return html`<div class=${`inj ${colourOf(told, each.set)}${isOff ? " struck" : ""}`}>
    <div class="injhead">
      <b class="mono cut">${each.set || each.origin}</b><span class="grow"></span
      ><${Facts} metadata=${each.metadata} /><span class="num nowrap">about ${plural(about(text), "token")}</span>
    </div>
    <div class="wraps">${text}</div>
    ${isOff && html`<span class="tiny dim">Switched off. The next run is without it.</span>`}
  </div>`;
}

function Share({ told, before }) {
  const parts = SLOTS.flatMap(([slot]) =>
    slot === "user"
      ? [["", about(before.message)]]
      : before.injections
          .filter(each => each.position === slot)
          .map(each => [colourOf(told, each.set), about(textOf(each.content))]),
  );
  const all = parts.reduce((sum, [, size]) => sum + size, 0);
  let at = 0;
  return html`<svg class="meter share" preserveAspectRatio="none" viewBox=${`0 0 ${all} 6`} aria-hidden="true">
    ${parts.map(([colour, size], place) => {
      const x = at;
      at += size;
      return html`<rect
        key=${place}
        class=${colour || "own"}
        x=${x}
        width=${Math.max(0.5, size - all / 400)}
        height="6"
      />`;
    })}
  </svg>`;
}

const plain = before =>
  SLOTS.flatMap(([slot]) =>
    slot === "user"
      ? [before.message]
      : before.injections
          .filter(each => each.position === slot)
          .map(each => `[from ${each.origin}, an external server]\n${textOf(each.content)}`),
  ).join("\n\n");

function Reads({ told, before }) {
  const [mode, setMode] = useState("laid");
  const injected = before.injections.reduce((sum, each) => sum + about(textOf(each.content)), 0),
    all = injected + about(before.message);
  const nobody = !before.wants;
  return html`<div class="row playrow">
      <h2 class="nowrap">What the model reads</h2>
      <span class="grow"></span
      ><span class="small dim num no-m nowrap">about ${plural(all, "token")}, ${number(injected)} injected</span>
      <${Segments}
        label="How it is shown"
        options=${[
          ["laid", "Laid out"],
          ["plain", "Plain"],
        ]}
        value=${mode}
        onChange=${setMode}
      />
      ${before.seq != null && html`<${Button} small plain onClick=${() => go("wire", String(before.seq))}>Wire<//>`}
    </div>
    ${
      mode === "plain"
        ? html`<pre class="said wraps">${plain(before)}</pre>`
        : html`<${Share} told=${told} before=${before} />${SLOTS.map(
              ([slot, words]) =>
                html`<div class="slot" key=${slot}>
                  <h3>${words}</h3>
                  <div>
                    ${slot === "system" && html`<div class="said dim">The host's own instructions.</div>`}
                    ${
                      slot === "user"
                        ? html`<div class="said wraps">${before.message}</div>`
                        : before.injections
                            .filter(each => each.position === slot)
                            .map((each, at) => html`<${Injected} key=${at} told=${told} each=${each} />`)
                    }
                  </div>
                </div>`,
            )}`
    }
    ${
      nobody
        ? html`<p class="small dim playnote">No feature set that is on takes part before an inference.</p>`
        : before.silent.length > 0 &&
          html`<div class="playnote">
            <${Note} icon="clock"
              ><span class="small dim"
                >Gave nothing:${" "}
                ${before.silent.map((each, at) => html`${at > 0 && ", "}<code key=${each}>${each}</code>`)}. The server
                says why in its log, if a hook failed or was too slow.</span
              ><//
            >
          </div>`
    }
    <${Problems} all=${before.problems} />`;
}

const Problems = ({ all }) =>
  all.map(
    (each, at) =>
      html`<div class="playnote" key=${at}>
        <${Note} tone="warn" fact=${each.set ? `${each.set} was left out.` : "The hooks failed."}
          >${each.reason || each.outcome} <span class="dim">The turn went on without it.</span><//
        >
      </div>`,
  );

function Answer({ told, after }) {
  const last = after.rewrites.length - 1;
  return html`<div class="two answers">
      <div class="said">
        <div class="injhead"><b>answer as written</b></div>
        <div class="wraps">${after.answer}</div>
      </div>
      <div class="answers">
        ${
          last < 0
            ? html`<div class="said">
                <div class="injhead">
                  <b>as the user reads it</b><span class="grow"></span><span class="num">${duration(after.ms)}</span>
                </div>
                <span class="dim"
                  >${
                    after.text === null
                      ? "Nothing is shown."
                      : after.wants
                        ? after.blocking
                          ? "The same. No hook changed it."
                          : "The same. The hooks only look."
                        : "The same. No feature set that is on takes part after an inference."
                  }</span
                >
              </div>`
            : after.rewrites.map(
                (each, at) =>
                  html`<div key=${at} class=${`inj ${colourOf(told, each.set)}`}>
                    <div class="injhead">
                      <b class="mono cut">${each.set}</b><span class="grow"></span
                      ><${Facts}
                        metadata=${each.metadata}
                      />${at === last && html`<span class="num">${duration(after.ms)}</span>`}
                    </div>
                    <div class="wraps">
                      ${each.changes.map(([kind, text], place) =>
                        kind === "same"
                          ? text
                          : kind === "ins"
                            ? html`<ins key=${place} class="ins t">${text}</ins>`
                            : html`<del key=${place} class="del t">${text}</del>`,
                      )}
                    </div>
                  </div>`,
              )
        }
      </div>
    </div>
    <${Problems} all=${after.problems} />`;
}

export function Playground({ told, tabs, inputRef }) {
  const { message, answer, before, after, busy, failed } = useStore(live);
  return html`${tabs}
    <div class="head">
      <h2 class="nowrap">Hook playground</h2>
      <span class="faint small cut no-m">One turn, no model called</span><span class="grow"></span>${
        before &&
        html`<span class="tiny faint cut no-m"
          >${before.conversation}, turn ${before.turn + 1}, ${duration(before.ms)}</span
        >`
      }
    </div>
    <div class="body">
      <div class="ask2">
        <label class="in area"
          ><span class="vh">What the user says</span
          ><textarea
            class="bare"
            rows="2"
            ref=${inputRef}
            placeholder="What the user says"
            value=${message}
            onInput=${event => live.set({ message: event.target.value })}
          ></textarea>
        </label>
        <${Button}
          primary
          icon="play"
          keys="Ctrl ↵"
          busy=${busy}
          reason=${message.trim() ? null : "Say something first"}
          onClick=${run}
          >Run<//
        >
        ${
          told.after
            ? html`<label class="in area"
                ><span class="vh">What the model answers</span
                ><textarea
                  class="bare"
                  rows="2"
                  placeholder="What the model answers, typed by you"
                  value=${answer}
                  onInput=${event => live.set({ answer: event.target.value })}
                ></textarea>
              </label>`
            : html`<p class="tiny dim">MCPL ${told.version} has no hooks after an inference.</p>`
        }
      </div>
      <div role="status" aria-live="polite">
        ${failed && html`<div class="playnote"><${ErrorNote} error=${failed} onRetry=${run} /></div>`}
      </div>
      ${
        before
          ? html`<${Reads} told=${told} before=${before} />`
          : !failed &&
            html`<p class="dim small">
              Run shows the prompt as a model would read it, with whatever the feature sets put into it. With an answer
              it also shows what the user would read.
            </p>`
      }
      ${
        after &&
        html`<div class="row playrow">
            <h2 class="grow">What the user reads</h2>
            ${after.seq != null && html`<${Button} small plain onClick=${() => go("wire", String(after.seq))}>Wire<//>`}
          </div>
          <${Answer} told=${told} after=${after} />`
      }
    </div>`;
}
