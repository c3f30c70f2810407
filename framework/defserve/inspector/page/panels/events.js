// Events: the types that a server tells of, and what comes of them by stream, poll or webhook.
import { html, useEffect, useMemo } from "../vendor/preact.js";
import { clock, plural } from "../format.js";
import { ask, on } from "../socket.js";
import { app, createStore, go, useStore } from "../store.js";
import { Button, Chip, Copy, Segments } from "../parts/controls.js";
import { Form } from "../parts/form/form.js";
import { initial, problems, resolve } from "../parts/form/schema.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { Empty, ErrorNote } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { own } from "../parts/parsing.js";
import { ItemPane, firstLine, fitting, listed, useItems } from "./listed.js";

const { store, load, start: startList } = listed("events.list", "events");
// `values`: event → arguments. `ways`: event → how it is followed. `failed`: "era event" → why it could not be.
// `followed`: number → what the host told of it last.
const state = createStore({ values: {}, ways: {}, failed: {}, followed: {}, busy: false });
const WAYS = { push: ["stream", "Stream"], poll: ["poll", "Poll"], webhook: ["webhook", "Webhook"] };
const CHECKS = {
  good: ["ok", "signature good"],
  repeated: ["warn", "repeated id"],
  refused: ["bad", "refused"],
};
const schemaOf = event => ({ type: "object", ...event.inputSchema });
const valueOf = (values, event) =>
  own(values, event.name) ?? initial(resolve(schemaOf(event), schemaOf(event)), schemaOf(event)) ?? {};
const wayOf = (ways, event) => own(ways, event.name) ?? WAYS[event.delivery[0]]?.[0];
const keep = told => state.set(({ followed }) => ({ followed: { ...followed, [told.number]: told } }));

async function follow(era, event) {
  const { values, ways, busy } = state.get(),
    key = `${era} ${event.name}`;
  if (busy) return;
  const fail = error => state.set(({ failed }) => ({ busy: false, failed: { ...failed, [key]: error } }));
  state.set({ busy: true });
  try {
    keep(
      await ask("events.follow", {
        era,
        event: event.name,
        way: wayOf(ways, event),
        arguments: valueOf(values, event),
      }),
    );
    fail(null);
  } catch (error) {
    fail(error);
  }
}

const stop = number => ask("events.stop", { number }).catch(() => {});

function EventForm({ event, era, onFollow, onBack }) {
  const { values, ways, failed, busy } = useStore(state);
  const schema = schemaOf(event),
    value = valueOf(values, event),
    error = failed[`${era} ${event.name}`];
  const wrong = useMemo(
    () =>
      event.name in values
        ? Object.fromEntries(problems(value, schema, schema).map(({ path, reason }) => [path, reason]))
        : {},
    [event, value],
  );
  const way = wayOf(ways, event);
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="mono grow cut toolname">${event.name}</h2>
    </div>
    <div class="body stream">
      ${event.description && html`<p class="about">${event.description}</p>`}
      <${Form}
        schema=${schema}
        value=${value}
        onChange=${next => state.set(each => ({ values: { ...each.values, [event.name]: next } }))}
        wrong=${wrong}
        id="event"
      />
      ${
        event.delivery.length > 0 &&
        html`<div class="field">
          <div class="lab"><b>delivery</b></div>
          <${Segments}
            label="Delivery"
            options=${event.delivery.map(each => WAYS[each])}
            value=${way}
            onChange=${next => state.set(each => ({ ways: { ...each.ways, [event.name]: next } }))}
          />
          ${
            way === "webhook" &&
            html`<p class="help">
              The inspector receives at an address of this machine. Most servers refuse such an address; one of defserve
              takes it with EventSettings(allow_loopback=True).
            </p>`
          }
        </div>`
      }
      ${error && html`<${ErrorNote} error=${error} fact="It cannot be followed." onRetry=${onFollow} />`}
    </div>
    <div class="bar">
      <${Button} primary icon="play" busy=${busy} keys="Ctrl ↵" onClick=${onFollow}
        >${way === "webhook" ? "Subscribe" : "Listen"}<//
      >
    </div>`;
}

// One delivery: what it is, whether a good receiver would take it, its data.
function Delivery({ row }) {
  const [tone, words] = CHECKS[row.check] ?? [];
  return html`<div class="part">
    <div class="row">
      <span class="tiny dim num">${clock(row.at)}</span>
      <b class="mono grow cut">${row.kind || row.id}</b>
      ${row.gap && html`<${Chip} tone="warn">events before it are gone<//>`}
      ${tone && html`<${Chip} tone=${tone} title=${row.why}>${words}<//>`}
    </div>
    ${row.why && html`<p class="help bad">${row.why}</p>`}
    ${row.data && Object.keys(row.data).length > 0 && html`<${Json} value=${row.data} label="Data" />`}
  </div>`;
}

function Followed({ told }) {
  return html`<section class="stream" aria-label=${`${told.way} ${told.number}`}>
    <div class="row">
      <${Chip} tone=${told.running ? "ok" : "out"}>${told.running ? told.way : `${told.way}, ended`}<//>
      <span class="mono grow cut">${JSON.stringify(told.arguments)}</span>
      <span class="tiny dim num" role="status">${plural(told.count, "delivery", "deliveries")}</span>
      ${
        told.running &&
        html`<${Button} small onClick=${() => stop(told.number)} label=${`Stop ${told.way} ${told.number}`}>Stop<//>`
      }
    </div>
    ${
      told.about.url &&
      html`<p class="tiny dim mono">${told.about.url} <${Copy} text=${told.about.url} label="Copy the address" /></p>`
    }
    ${told.error && html`<${ErrorNote} error=${told.error} fact="The server ended it." />`}
    ${told.deliveries.map(row => html`<${Delivery} key=${row.number} row=${row} />`)}
    ${told.count === 0 && told.running && html`<p class="dim">Nothing has come yet.</p>`}
  </section>`;
}

function Deliveries({ name, onBack }) {
  const followed = useStore(state, each => each.followed);
  const shown = Object.values(followed)
    .filter(each => each.event === name)
    .sort((one, other) => other.number - one.number);
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the arguments" onClick=${onBack} />
      <h2 class="grow cut">Deliveries</h2>
    </div>
    <div class="body">
      ${
        shown.length
          ? shown.map(told => html`<${Followed} key=${told.number} told=${told} />`)
          : html`<${Empty} icon="live" title="Nothing is followed"
              >Choose how ${name || "an event"} is delivered, and listen. What the server tells appears here.<//
            >`
      }
    </div>`;
}

function Panel() {
  const onFollow = ({ era, item, setView }) => {
    if (item) {
      follow(era, item);
      setView("res");
    }
  };
  const items = useItems(store, "events", {
    itemsOf: list => list.events,
    textsOf: each => [each.name, each.description],
    keyOf: each => each.name,
    keys: panel => ({ "ctrl+enter": () => onFollow(panel) }),
  });
  const { era, chosen: name, list, item: event, view, setView } = items;
  useEffect(() => {
    list?.followed.forEach(keep);
  }, [list]);
  return html`<${Panes} id="events" class="p-events" title="Events" show=${`show-${view}`}>
    <${ItemPane}
      items=${items}
      noun="event"
      icon="live"
      load=${load}
      without=${{
        go: "tools",
        to: "Tools",
        text: "This server offers no MCP Events in this era. They are a draft of the stateless one.",
      }}
      row=${each =>
        html`<${Icon} name="live" s /><span class="nm cut">${each.name}</span><span class="tok"></span
          ><span class="d cut">${firstLine(each.description)}</span>`} />
    <${Pane} label=${name || "Event"} class="t-form"
      >${
        event
          ? html`<${EventForm}
              key=${`${era} ${name}`}
              event=${event}
              era=${era}
              onFollow=${() => onFollow(items)}
              onBack=${() => setView("list")}
            />`
          : html`<div class="head only-m">
                <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
              </div>
              <div class="body">
                ${
                  list &&
                  html`<${Empty} icon="live" title=${name ? `There is no event ${name} here` : "No event is chosen"}
                    >${name ? "It may be in the other era." : "Choose one on the left."}<//
                  >`
                }
              </div>`
      }<//
    >
    <${Pane} label="Deliveries" class="t-res"><${Deliveries} name=${name} onBack=${() => setView("form")} /><//
  ><//>`;
}

export const events = {
  Panel,
  start: () => {
    startList();
    on("events", keep);
  },
  keys: [["Ctrl Enter", "listen, or subscribe"]],
  count: () => {
    const era = useStore(app, each => each.era);
    return useStore(store, each => each.lists)[era]?.events.length;
  },
  finds: words =>
    fitting(store.get().lists[app.get().era]?.events ?? [], words, each => [each.name, each.description]).map(each => ({
      title: each.name,
      hint: "event",
      icon: "live",
      mono: true,
      run: () => go("events", each.name),
    })),
};
