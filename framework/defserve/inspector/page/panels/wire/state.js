// A call and its state together: what it began with, what it changed, what it left, and the same call from there again.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app, go, useStore } from "../../store.js";
import { bytes, number, plural } from "../../format.js";
import { Button, Copy } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { ErrorNote, Loading, Note } from "../../parts/notes.js";
import { Operation } from "../state/difference.js";
import { Confirmation } from "./confirmation.js";

const MOST = 50;
const short = id => id.replace(/^[a-z]+_/, "").slice(0, 4);

// A checkpoint: a click shows it in its tree.
const Point = ({ id, words }) =>
  html`<span class="row gap4"
    ><span class="dim">${words}</span>${
      id === null
        ? html`<span class="faint">nothing</span>`
        : html`<${Button} small plain icon="branch" title=${id} onClick=${() => go("state", id)}
              ><code>${short(id)}</code><//
            ><${Copy} text=${id} label=${`Copy the checkpoint ${id}`} />`
    }</span
  >`;

function Changes({ found }) {
  if (!found.ops) return html`<p class="dim">It changed nothing.</p>`;
  return html`${found.ops.slice(0, MOST).map((op, at) => html`<${Operation} key=${at} op=${op} />`)}
  ${found.count === 0 && html`<p class="dim">It changed nothing.</p>`}
  ${found.count > MOST && html`<p class="small faint">and ${number(found.count - MOST)} more changes</p>`}`;
}

export function StateTab({ call, onShow }) {
  const saved = useStore(app, state => state.target.saved);
  const [answer, setAnswer] = useState(null);
  const [asking, setAsking] = useState(null); // { at, about }
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(null);
  const { seq } = call;
  useEffect(() => {
    let here = true;
    setAnswer(null);
    setError(null);
    ask("state.of_call", { seq }).then(
      found => here && setAnswer({ found }),
      failed => here && setAnswer({ failed }),
    );
    return () => {
      here = false;
    };
  }, [seq]);
  if (!answer) return html`<${Loading} />`;
  if (answer.failed) return html`<div class="body"><${ErrorNote} error=${answer.failed} /></div>`;
  const { found } = answer;
  const run = async (at, confirmed = false) => {
    setAsking(null);
    setError(null);
    setBusy(at);
    try {
      const done = await ask("state.run_again", { seq, at, confirmed });
      if (done.confirm) setAsking({ at, about: done.confirm });
      else if (done.error) setError(done.error);
      else if (done.seq !== null) onShow(done.seq);
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy("");
    }
  };
  const reason = saved ? "This is a saved session: nothing is sent" : found.set ? null : "Its checkpoint is not known";
  const again = (at, words) =>
    html`<${Button} small icon="fork" busy=${busy === at} reason=${reason} onClick=${() => run(at)}>${words}<//>`;
  const from = found.before === null ? "the beginning" : short(found.before);
  const params = call.body?.params ?? {};
  return html`<div class="eras travel">
    <div class="p12">
      <div class="row wrap">
        <h2>${call.about}</h2>
        <${Point} id=${found.before} words="from" />${
          found.after !== null && html`<${Point} id=${found.after} words="to" />`
        }
      </div>
      <${Json} value=${params.arguments ?? {}} label="Arguments" />
      <div class="row wrap">
        ${again("before", `Run again from ${from}`)}${
          found.after !== null && again("after", `Run again from ${short(found.after)}`)
        }
        ${
          found.trace &&
          html`<span class="only-m"
            ><${Button} small plain icon="shield" onClick=${() => go("security", found.trace)}>Audit<//></span
          >`
        }
      </div>
      ${
        error
          ? html`<${ErrorNote} error=${error} />`
          : html`<p class="small dim">
              The call starts from that checkpoint and leaves a branch. Nothing is lost: what came after it stays.
            </p>`
      }
    </div>
    <div class="p12">
      <div class="row">
        <h2>What it changed</h2>
        <span class="grow"></span>${
          found.ops && html`<span class="small dim num">${plural(found.count, "change")}</span>`
        }
      </div>
      ${
        found.missing
          ? html`<${Note} fact="There are no contents to show.">${found.missing}<//>`
          : html`<${Changes} found=${found} />`
      }
      ${
        found.content !== undefined &&
        html`<h3>State ${found.after === null ? "that it saw" : "after it"}</h3>
          <${Json} value=${found.content} copy label="State" />`
      }
      ${
        !found.missing &&
        found.content === undefined &&
        html`<p class="dim">The state has ${bytes(found.bytes)}, which is too long to show.</p>`
      }
    </div>
    ${
      asking &&
      html`<${Confirmation}
        about=${asking.about}
        title=${`Run ${asking.about.tool} again, from ${asking.at === "before" ? from : short(found.after)}?`}
        words="It will run once, with the same arguments. What the tool does outside of its state is done again."
        yes="Run again"
        onYes=${() => run(asking.at, true)}
        onNo=${() => setAsking(null)}
      />`
    }
  </div>`;
}
