// The right pane: the calls, newest first, and what the one in view gave.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { cut, duration, number, plural } from "../../format.js";
import { answer, useOpenQuestions } from "../../questions.js";
import { app, go, useStore } from "../../store.js";
import { Button, Copy, Tabs } from "../../parts/controls.js";
import { Block, Log, Part, Structured, repeats, tabled } from "../../parts/content.js";
import { Icon } from "../../parts/icons.js";
import { Json } from "../../parts/json.js";
import { Empty, ErrorNote, Note } from "../../parts/notes.js";
import { Pane } from "../../parts/panes.js";
import { SAVED, saveTest } from "./form.js";
import { callInView, cancel, follow, store } from "./state.js";

const LONGEST_TAB = 48;
const MOST_COMPARED = 2000; // lines of a result
const MANY_TOKENS = 10000; // our own budget, well below what clients refuse
const TONE = { done: "ok", failed: "bad", cancelled: "warn" };

export const CallMark = ({ call }) =>
  call.state === "running"
    ? html`<${Icon} name="spinner" s class="acc" />`
    : html`<span class=${`dot ${TONE[call.state]}`}></span><span class="vh">${call.state}</span>`;

function useTick(active) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!active) return undefined;
    const timer = setInterval(() => tick(count => count + 1), 100);
    return () => clearInterval(timer);
  }, [active]);
}

function Progress({ call }) {
  const isRunning = call.state === "running";
  useTick(isRunning);
  const passed = isRunning ? performance.now() - call.began : call.ms;
  const { progress, total, message } = call.progress ?? {};
  const share = total > 0 && progress / total >= 0 ? Math.min(1, progress / total) : null;
  const left = isRunning && share > 0.05 && share < 1 ? passed / share - passed : null;
  const words = isRunning
    ? (message ?? (call.progress ? "Working" : "Waiting for the answer"))
    : { done: "Done", failed: "Failed", cancelled: "Cancelled" }[call.state];
  const era = call.era ? `${isRunning ? "Runs" : "Ran"} in the ${call.era} era.` : "";
  const given = spoken(call.arguments);
  return html`<div class="part">
    <p class="calledwith mono cut" title=${`${call.tool} ${given}`}><b>${call.tool}</b> ${given}</p>
    <div class="row progress">
      <b class="grow cut" title=${words}>${words}</b
      >${share !== null && isRunning && html`<span class="num dim">${Math.round(share * 100)} %</span>`}<span
        class="num faint"
        >${duration(passed)}</span
      >
      ${isRunning && html`<${Button} small icon="stop" keys="Esc" onClick=${() => cancel(call)}>Cancel<//>`}
    </div>
    ${
      isRunning &&
      html`<svg
        class=${`meter${share === null ? " unknown" : ""}`}
        preserveAspectRatio="none"
        viewBox="0 0 100 6"
        role="progressbar"
        aria-label="Progress"
        aria-valuenow=${share === null ? null : Math.round(share * 100)}
        aria-valuemin="0"
        aria-valuemax="100"
      >
        <rect width=${share === null ? 30 : share * 100} height="6" />
      </svg>`
    }
    <p class="tiny faint under">
      ${[
        left !== null && `About ${duration(left)} left.`,
        call.first != null && `First part after ${duration(call.first)}.`,
        era,
        call.tokens > 0 && call.tokens < MANY_TOKENS && `About ${plural(call.tokens, "token")}.`,
      ]
        .filter(Boolean)
        .join(" ")}
    </p>
    ${
      call.tokens >= MANY_TOKENS &&
      html`<${Note} tone="warn" fact=${`About ${number(call.tokens)} tokens for a model to read.`}
        >Some clients take no more than 25,000. Return less, or return it in pages.<//
      >`
    }
  </div>`;
}

// The content of a result, whatever a server sent.
const contentOf = result => (Array.isArray(result?.content) ? result.content : []);

// An error that the author's code did not foresee. Its traceback is with the server.
const LOGGED = /internal error.* \(id \w+\)/;

// The text of a failed result, with the line that says how to fix it.
function failure(call) {
  if (call.error) return call.error;
  const text =
    contentOf(call.result)
      .filter(block => block?.type === "text")
      .map(block => String(block.text))
      .join("\n") || "the tool failed";
  const about = call.result?._meta?.["dev.defserve/error"] ?? call.result?._mgp?.error ?? {};
  const [message, fix] = text.split(/\n\s*fix:\s*/);
  // The id in the text is the one in the server's log, so no other is shown beside it.
  const logged = LOGGED.test(message);
  return {
    message,
    fix: fix ?? about.fix,
    data: about,
    logged,
    detail: [about.error_type, !logged && about.trace_id && `id ${about.trace_id}`].filter(Boolean).join(", "),
  };
}

function Parts({ call, schema }) {
  const isRunning = call.state === "running";
  const structured = call.result?.structuredContent;
  // A failed result says why in its texts, which the note shows.
  const content =
    isRunning || !call.result
      ? call.parts
      : contentOf(call.result).filter(block => call.state !== "failed" || block?.type !== "text");
  const { rows, rest: blocks } = tabled(content.filter(block => !repeats(block, structured)));
  const joined =
    isRunning && blocks.length > 1 && blocks.every(block => block?.type === "text")
      ? [{ type: "text", text: blocks.map(block => block.text).join("") }]
      : blocks;
  const nothing = call.state === "done" && structured === undefined && !blocks.length && !rows;
  return html`${
      structured !== undefined
        ? html`<${Structured} value=${structured} schema=${schema} />`
        : rows &&
          html`<${Structured}
            value=${rows.length === 1 && !isRunning ? rows[0] : rows}
            schema=${schema}
            running=${isRunning}
            title="Result"
          />`
    }
    ${joined.map((block, at) => html`<${Block} key=${at} block=${block} />`)}${
      nothing && html`<p class="dim">The tool gave nothing back.</p>`
    }<${Log} lines=${call.log} count=${call.log.length} dropped=${call.dropped} />`;
}

// The answers of a question that takes yes or no: pairs of the word and what is answered. Null for other questions.
function yesOrNo({ kind, schema }) {
  const members = Object.entries(schema?.properties ?? {});
  if (kind !== "form" || members.length > 1 || members.some(([, member]) => member?.type !== "boolean")) return null;
  const accept = value => ({ action: "accept", content: Object.fromEntries(members.map(([name]) => [name, value])) });
  return members.length
    ? [
        ["Yes", accept(true)],
        ["No", accept(false)],
      ]
    : [
        ["Accept", accept()],
        ["Decline", { action: "decline" }],
      ];
}

// A call may wait for the person. What takes yes or no is answered here.
function Asked({ era }) {
  const [question] = useOpenQuestions().filter(each => each.era === era);
  const [failed, setFailed] = useState("");
  if (!question) return null;
  const give = given => answer(question, given).catch(error => setFailed(error.message));
  const buttons = yesOrNo(question)?.map(
    ([words, given]) => html`<${Button} small key=${words} onClick=${() => give(given)}>${words}<//>`,
  );
  const open = html`<${Button} small plain=${!!buttons} onClick=${() => go("questions", String(question.id))}
    >${buttons ? "Other answers" : "Answer it"}<//
  >`;
  return html`<${Note} tone="warn" icon="question" fact="The server asks something." actions=${html`${buttons}${open}`}>
    ${question.message ?? "It wants an answer of your model."}${failed && html`<p class="bad">${failed}</p>`}<//
  >`;
}

// There is none before the first call has ended, so what draws it is loaded then.
function Waterfall({ of }) {
  const [Drawn, setDrawn] = useState(null);
  useEffect(() => {
    import("../../parts/waterfall.js").then(({ Waterfall: part }) => setDrawn(() => part));
  }, []);
  return Drawn && html`<${Drawn} of=${of} />`;
}

const FRAME = /^ {2}File "(.+)", line \d+/;
const NOT_THE_AUTHORS = /[\\/](?:defserve|site-packages|lib[\\/]python[\d.]+)[\\/]/;

// The lines of a traceback without the frames of the framework and the libraries, and how many frames were left out.
function ownFrames(text) {
  let isOwn = true,
    left = 0;
  const lines = text.split("\n").filter(line => {
    const file = FRAME.exec(line)?.[1];
    if (file) {
      isOwn = !NOT_THE_AUTHORS.test(file);
      left += !isOwn;
    } else if (!line.startsWith("    ")) isOwn = true;
    return isOwn;
  });
  return lines.some(line => FRAME.test(line)) ? [lines.join("\n"), left] : [text, 0];
}

// What the author wrote comes first; the way that led there is a click away.
function Traceback({ text }) {
  const [isWhole, setWhole] = useState(false);
  const [own, left] = ownFrames(text);
  const tools = html`${
      left > 0 &&
      html`<${Button} small plain onClick=${() => setWhole(!isWhole)}
        >${isWhole ? "Only my frames" : `${left} more frames`}<//
      >`
    }<${Copy} text=${text} label="Copy the traceback" />`;
  return html`<${Part} title="Traceback" tools=${tools}>
    <pre class="traceback" tabindex="0" role="region" aria-label="Traceback">${isWhole ? text : own}</pre>
  <//>`;
}

function Shown({ call, tool, onRepeat }) {
  const failed = call.state === "failed" && failure(call);
  const [raw, setRaw] = useState(false);
  const { tracebacks } = useStore(app, state => state.target);
  const needs = failed && /not grant|permission/i.test(failed.message);
  // A refusal is a sentence. What else there is to know about it waits in the fold.
  const whole = call.result ?? call.error?.data;
  const title = call.result ? "Whole result" : "Details";
  return html`<div class="stream">
    <${Progress} call=${call} />${call.state === "running" && html`<${Asked} era=${call.era} />`}
    ${
      failed &&
      html`<${ErrorNote}
        error=${failed}
        onRetry=${failed.signIn && onRepeat}
        detail=${[failed.detail, failed.logged && !call.traceback && tracebacks].filter(Boolean).join(". ")}
        actions=${needs && html`<${Button} small onClick=${() => go("security")}>Go to Security<//>`}
      />`
    }
    ${
      call.state === "cancelled" &&
      html`<${Note} tone="warn" fact="The call was cancelled."
        >${call.parts.length > 0 ? "These parts came before." : "Nothing had come."}<//
      >`
    }
    ${call.traceback && html`<${Traceback} text=${call.traceback} />`}
    <${Parts} call=${call} schema=${tool?.output} />
    ${call.waterfall && html`<${Waterfall} of=${call.waterfall} />`}
    ${
      whole &&
      html`<div class="part">
        <${Button} small plain icon=${raw ? "down" : "right"} aria-expanded=${String(raw)} onClick=${() => setRaw(!raw)}
          >${title}<//
        >${raw && html`<${Json} value=${whole} copy label=${title} tools />`}
      </div>`
    }
  </div>`;
}

const outcomeOf = call =>
  JSON.stringify(call.result?.structuredContent ?? call.result?.content ?? call.error?.message ?? null, null, 2).split(
    "\n",
  );

// Two results side by side, each with its arguments. What only one of them has is marked, line by line.
function Compared({ call, other }) {
  const lines = { [other.n]: outcomeOf(other), [call.n]: outcomeOf(call) };
  const side = (each, against, tone) => {
    const known = new Set(lines[against.n]);
    const args = Object.entries(each.arguments ?? {});
    const differs = (name, value) => JSON.stringify(against.arguments?.[name]) !== JSON.stringify(value);
    return html`<div class="part" role="group" aria-label=${`Call ${each.n}`}>
      <h3>Call ${each.n}, ${duration(each.ms)}</h3>
      <p class="mono small wraps">
        ${
          args.length
            ? args.map(
                ([name, value]) =>
                  html`<span key=${name} class=${differs(name, value) ? tone : ""}>${spoken({ [name]: value })}</span
                    >${" "}`,
              )
            : html`<span class="faint">no arguments</span>`
        }
      </p>
      <pre class="json wraps" tabindex="0" role="region" aria-label=${`Result of call ${each.n}`}>
${lines[each.n]
          .slice(0, MOST_COMPARED)
          .map(
            (line, at) => html`<span key=${at} class=${`jl${known.has(line) ? "" : ` ${tone}`}`}>${line}${"\n"}</span>`,
          )}</pre>
      ${
        lines[each.n].length > MOST_COMPARED &&
        html`<p class="dim small">These are the first ${number(MOST_COMPARED)} lines.</p>`
      }
    </div>`;
  };
  const same = lines[other.n].join() === lines[call.n].join();
  return html`<div class="stream">
    ${same && html`<${Note} tone="ok" fact=${`Call ${call.n} gave the same as call ${other.n}.`} />`}
    <div class="comparison">${side(other, call, "del")}${side(call, other, "ins")}</div>
  </div>`;
}

// The arguments in one line, as a person would say them.
export const spoken = args =>
  Object.entries(args ?? {})
    .map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(" ");

const TabWords = ({ call }) => {
  const facts = [call.tool, call.state === "done" ? call.brief : call.state, call.ms != null && duration(call.ms)];
  return html`<${CallMark} call=${call} />${cut(facts.filter(Boolean).join(" · "), LONGEST_TAB)}`;
};

export function ToolResult({ tool, name, onRepeat, head }) {
  const state = useStore(store);
  const { calls } = state;
  const isSaved = useStore(app, each => !!each.target?.saved);
  const [compared, setCompared] = useState(null); // the call that is compared; another one in view is not
  const call = callInView(state, name);
  const comparing = !!call && compared === call.n;
  const other = call && calls.find(each => each.tool === call.tool && each.n < call.n && each.state !== "running");
  // What the host has kept is fetched when it is looked at.
  const missing = [call, comparing && other].filter(each => each && !each.followed).map(each => each.n);
  useEffect(() => missing.forEach(follow), [missing.join()]);
  const choose = n => {
    store.set({ shown: n });
    go("tools", calls.find(each => each.n === n).tool);
  };
  const tabs = calls.map(each => [each.n, html`<${TabWords} call=${each} />`]);
  const onWire = () => go("wire", call.request ? `id:${call.request}` : `tool:${call.tool}`);
  return html`<${Pane} label="Result" class="t-res"
    >${head}
    ${
      tabs.length > 0 &&
      html`<${Tabs} label="Calls" class="no-m" tabs=${tabs} value=${call?.n} onChange=${choose}>
        <button
          type="button"
          class="faint small comparebtn"
          aria-pressed=${String(comparing)}
          disabled=${!other || call.state === "running"}
          title=${other ? `with call ${other.n}` : "There is no earlier call of this tool."}
          onClick=${() => setCompared(comparing ? null : call.n)}
        >
          Compare
        </button><//
      >`
    }
    ${
      call
        ? html`<div class="body" role="tabpanel" aria-label=${`Call ${call.n} of ${call.tool}`}>
              ${
                comparing && other
                  ? html`<${Compared} call=${call} other=${other} />`
                  : html`<${Shown} key=${call.n} call=${call} tool=${tool} onRepeat=${onRepeat} />`
              }
            </div>
            <div class="bar no-m">
              <${Button} icon="repeat" keys="R" reason=${isSaved ? SAVED : null} onClick=${onRepeat}>Repeat<//
              ><${Button} icon="save" onClick=${() => saveTest(call)} disabled=${call.state === "running"}
                >Save as test<//
              ><span class="grow"></span><${Button} plain icon="wire" onClick=${onWire}>Show on the wire<//>
            </div>`
        : html`<div class="body">
            ${
              state.refused
                ? html`<${ErrorNote} error=${state.refused} />`
                : html`<${Empty} icon="play" title=${name && calls.length ? `No calls of ${name} yet` : "No calls yet"}
                    >${isSaved ? SAVED : "Fill in the form and call the tool. The result appears here."}<//
                  >`
            }
          </div>`
    }
    <div class="vh" role="status" aria-live="polite">
      ${call && call.state !== "running" ? `Call ${call.n} of ${call.tool}: ${call.state}.` : ""}
    </div><//
  >`;
}
