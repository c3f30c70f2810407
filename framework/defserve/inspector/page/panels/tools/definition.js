// A tool's definition: as it came, and in the shape that each vendor's API is sent. The host makes the shapes.
import { html, useEffect, useMemo, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { app, useStore } from "../../store.js";
import { number, plural } from "../../format.js";
import { Chip, Segments } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { ErrorNote, Loading, Note } from "../../parts/notes.js";
import { store } from "./state.js";

const AS_IT_CAME = "mcp";
const WAYS = [
  [AS_IT_CAME, "MCP"],
  ["openai", "OpenAI"],
  ["openai-chat", "OpenAI Chat"],
  ["anthropic", "Anthropic"],
  ["gemini", "Gemini"],
];
const SCOPES = [
  ["one", "This tool"],
  ["all", "All tools"],
];
let last = AS_IT_CAME; // stays when another tool is chosen

// The shapes of some definitions: null until they are there.
function useShapes(definitions, wanted) {
  const [state, setState] = useState({ shapes: null, error: null });
  useEffect(() => {
    if (!wanted) return undefined;
    let current = true;
    setState({ shapes: null, error: null });
    ask("tools.shapes", { tools: definitions }).then(
      shapes => current && setState({ shapes, error: null }),
      error => current && setState({ shapes: null, error }),
    );
    return () => {
      current = false;
    };
  }, [definitions, wanted]);
  return state;
}

function Shape({ shape, count }) {
  return html`<div class="stream">
    <p class="row wrap">
      <${Chip} tone="out" class="num">about ${number(shape.tokens)} tokens<//
      ><span class="dim">${shape.title}: what is sent as <code>tools</code> of ${plural(count, "tool")}</span>
    </p>
    ${
      shape.problems.length > 0 &&
      html`<${Note} tone="warn" fact="This API would refuse it."
        ><ul>
          ${shape.problems.map(problem => html`<li key=${problem}>${problem}</li>`)}
        </ul><//
      >`
    }
    ${
      shape.lost.length > 0 &&
      html`<${Note} fact="The model is not told"
        >${shape.lost.map((member, at) => html`${at ? ", " : ""}<code key=${member}>${member}</code>`)}. This shape has
        no place for it.<//
      >`
    }
    <${Json} value=${shape.value} copy label=${`As ${shape.title} is sent it`} />
  </div>`;
}

export function Definition({ tool }) {
  const era = useStore(app, state => state.era);
  const tools = useStore(store, state => state.lists)[era]?.tools;
  const [way, setWay] = useState(last);
  const [scope, setScope] = useState("one");
  const one = useMemo(() => [tool.definition], [tool.definition]);
  const all = useMemo(() => (tools ?? []).map(each => each.definition), [tools]);
  const chosen = scope === "all" ? all : one;
  const { shapes, error } = useShapes(chosen, way !== AS_IT_CAME);
  const choose = next => {
    last = next;
    setWay(next);
  };
  const shape = shapes?.find(each => each.vendor === way);
  return html`<div class="stream">
    <div class="row wrap">
      <${Segments} class="shapes" label="Shape of the definition" options=${WAYS} value=${way} onChange=${choose} />
      ${
        way !== AS_IT_CAME &&
        html`<${Segments} label="Which tools" options=${SCOPES} value=${scope} onChange=${setScope} />`
      }
    </div>
    ${
      way === AS_IT_CAME
        ? html`<${Json} value=${tool.definition} copy label="Definition" />`
        : error
          ? html`<${ErrorNote} error=${error} fact="The shapes could not be made." />`
          : shape
            ? html`<${Shape} key=${`${way} ${scope}`} shape=${shape} count=${chosen.length} />`
            : html`<${Loading} rows=${3} />`
    }
  </div>`;
}
