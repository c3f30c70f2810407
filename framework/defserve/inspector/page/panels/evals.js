// Evals: a report of `defserve eval --json`: which cases pass, and which tool loses to which. The file is read here;
// neither the host nor a model is asked.
import { html, useRef, useState } from "../vendor/preact.js";
import { app, createStore, go, useStore } from "../store.js";
import { number, plural, quoted } from "../format.js";
import { Button, Chip, Copy } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Empty, ErrorNote } from "../parts/notes.js";
import { Stacked } from "../parts/panes.js";

const LARGEST = 5e6; // bytes of a file
const MOST = 500; // cases that are shown
const TONES = { pass: "ok", unclear: "warn", fail: "bad", incomplete: "bad", worse: "bad" };

const store = createStore({ name: "", report: null, error: null });

const isText = value => typeof value === "string";
const isCount = value => Number.isFinite(value);
const isRow = value => value !== null && typeof value === "object" && !Array.isArray(value);

// A report, or null: the file may be anything.
function checked(value) {
  const isCase = each =>
    isRow(each) &&
    [each.name, each.expected].every(isText) &&
    [each.passed, each.runs, each.missing, each.low, each.high].every(isCount) &&
    isRow(each.instead) &&
    Array.isArray(each.reasons);
  const isWhole =
    isRow(value) &&
    value.format === 1 &&
    [value.suite, value.model].every(isText) &&
    Array.isArray(value.cases) &&
    value.cases.every(isCase) &&
    isRow(value.matrix) &&
    Object.values(value.matrix).every(isRow) &&
    Array.isArray(value.lost) &&
    value.lost.every(each => isRow(each) && isText(each.expected) && isText(each.called) && Array.isArray(each.shared));
  return isWhole ? value : null;
}

const FIX = "choose what `defserve eval --json` printed";

async function read(file) {
  if (!file) return;
  const wrong = message => store.set({ name: file.name, report: null, error: { message, fix: FIX } });
  if (file.size > LARGEST) return wrong(`${file.name} has more than 5 MB`);
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch {
    return wrong(`${file.name} is not JSON`);
  }
  const report = checked(value);
  if (report) store.set({ name: file.name, report, error: null });
  else wrong(`${file.name} is no report of an eval`);
}

const percent = value => `${Math.round(value * 100)} %`;

function Cases({ cases }) {
  return html`<table class="evals">
    <thead>
      <tr>
        <th>Case</th>
        <th>Expected</th>
        <th class="num">Passed</th>
        <th class="num">95 %</th>
        <th>Verdict</th>
        <th>Called instead</th>
      </tr>
    </thead>
    <tbody>
      ${cases.slice(0, MOST).map(
        each =>
          html`<tr key=${each.name} title=${each.reasons.filter(isText).join("\n")}>
            <td>${each.name}</td>
            <td class="mono">${each.expected}</td>
            <td class="num">${each.passed}/${each.runs}${each.missing > 0 && html` (${each.missing} missing)`}</td>
            <td class="num">${percent(each.low)} to ${percent(each.high)}</td>
            <td>${isText(each.verdict) && html`<${Chip} tone=${TONES[each.verdict]}>${each.verdict}<//>`}</td>
            <td class="mono">
              ${Object.entries(each.instead)
                .map(([called, count]) => `${called} ${number(count)}`)
                .join(", ")}
            </td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}

function Matrix({ matrix }) {
  const columns = [...new Set(Object.values(matrix).flatMap(Object.keys))].sort();
  return html`<table class="evals" aria-label="Expected and called">
    <thead>
      <tr>
        <th>Expected \\ called</th>
        ${columns.map(name => html`<th key=${name} class="mono num">${name}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${Object.entries(matrix).map(
        ([expected, called]) =>
          html`<tr key=${expected}>
            <th class="mono">${expected}</th>
            ${columns.map(
              name =>
                html`<td key=${name} class=${`num${name === expected ? " right" : ""}`}>
                  ${isCount(called[name]) ? number(called[name]) : ""}
                </td>`,
            )}
          </tr>`,
      )}
    </tbody>
  </table>`;
}

function Lost({ lost }) {
  return html`<ul class="lost">
    ${lost.map(
      each =>
        html`<li key=${`${each.expected} ${each.called}`}>
          <button type="button" class="link mono" onClick=${() => go("tools", each.expected)}>${each.expected}</button>
          loses to
          <button type="button" class="link mono" onClick=${() => go("tools", each.called)}>${each.called}</button>
          ${isCount(each.count) && html` ${plural(each.count, "time")}`}${
            each.shared.length > 0 && html`; both say ${each.shared.filter(isText).join(", ")}`
          }
        </li>`,
    )}
  </ul>`;
}

function Report({ report }) {
  const { score } = report;
  return html`<div class="cmpsum">
      <p><b>${report.suite}</b> <span class="dim">${report.model}</span></p>
      <p class="row wrap">
        ${isText(report.verdict) && html`<${Chip} tone=${TONES[report.verdict]}>${report.verdict}<//>`}
        ${isRow(score) && html`<span class="dim num">score ${percent(score.mean)}</span>`}
        <span class="dim num">${plural(report.cases.length, "case")}</span>
      </p>
    </div>
    <${Cases} cases=${report.cases} />
    ${report.lost.length > 0 && html`<${Lost} lost=${report.lost} />`}
    <${Matrix} matrix=${report.matrix} />`;
}

function Panel() {
  const { name, report, error } = useStore(store);
  const target = useStore(app, state => state.target);
  const input = useRef(null);
  const [over, setOver] = useState(false);
  const line = ["defserve eval", ...target.words.map(quoted), "suite.eval.yaml --json > report.json"].join(" ");
  return html`<${Stacked} class="p-evals" title="Evals">
    <section
      class=${`pane${over ? " over" : ""}`}
      aria-label="Report"
      onDragOver=${event => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave=${() => setOver(false)}
      onDrop=${event => {
        event.preventDefault();
        setOver(false);
        read(event.dataTransfer.files[0]);
      }}
    >
      <div class="head wrap">
        <h2>Do models choose the right tool?</h2>
        <span class="dim cut">${name}</span>
        <span class="grow"></span>
        <input
          ref=${input}
          type="file"
          class="vh"
          tabindex="-1"
          accept=".json,application/json"
          aria-label="A report"
          onChange=${event => {
            read(event.target.files[0]);
            event.target.value = "";
          }}
        />
        <${Button} small icon="file" onClick=${() => input.current.click()}>Open a report<//>
      </div>
      <div class="body">
        ${
          error
            ? html`<${ErrorNote} error=${error} fact="The report could not be read." />`
            : report
              ? html`<${Report} report=${report} />`
              : html`<${Empty} icon="bars" title="No report yet"
                  >Run the command below and open what it wrote, or drop the file here.<//
                >`
        }
      </div>
      <div class="cmd no-m">
        <${Icon} name="bars" s /><code class="cut grow" title=${line} tabindex="0">${line}</code
        ><${Copy} text=${line} label="Copy the command" />
      </div>
    </section>
  <//>`;
}

export const evals = {
  Panel,
  keys: [],
  count: () => {
    const failed = useStore(store, state => state.report?.cases.filter(each => each.verdict === "fail").length);
    return failed || undefined;
  },
};
