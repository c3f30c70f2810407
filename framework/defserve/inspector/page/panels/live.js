// Live: feature sets, the playground of hooks, pushed events and channels.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { app, connection, go, useStore } from "../store.js";
import { ask } from "../socket.js";
import { useKeys } from "../keys.js";
import { Button, Segments } from "../parts/controls.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Feed } from "./live/feed.js";
import { live, listen, run, take } from "./live/model.js";
import { Playground } from "./live/playground.js";
import { Sets } from "./live/sets.js";

const SHOWN = [
  ["show-sets", "Sets"],
  ["show-play", "Playground"],
  ["show-feed", "Events"],
];

function Panel() {
  const era = useStore(app, each => each.era);
  const isOpen = useStore(app, each => each.socket === "open" && connection(each)?.state === "open");
  const { told, error } = useStore(live);
  const [show, setShow] = useState("show-play");
  const input = useRef(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    live.set({ before: null, after: null, failed: null });
    // Channels and events of the stateless era come only when they are asked for.
    take().then(
      () =>
        live.get().told?.polls &&
        ask("live.collect", { era }).then(
          () => take(),
          () => {},
        ),
    );
    return listen();
  }, [era, isOpen]);
  useKeys({
    "ctrl+enter": () => {
      run();
    },
    "/": () => input.current?.focus(),
  });
  const here = told?.era === era ? told : null;
  const tabs = html`<div class="bar only-m livetabs">
    <${Segments} label="What is shown" options=${SHOWN} value=${show} onChange=${setShow} />
  </div>`;
  if (!here?.version) {
    return html`<${Panes} id="live-none" class="p-live-none" title="Live"
      ><${Pane} label="Live"
        >${
          error
            ? html`<div class="pad"><${ErrorNote} error=${error} onRetry=${() => take()} /></div>`
            : !here
              ? html`<${Loading} rows=${5} />`
              : html`<${Empty}
                  icon="live"
                  title="This server does not speak MCPL"
                  action=${html`<${Button} icon="tool" onClick=${() => go("tools")}>Its tools<//>`}
                  >A server that declares feature sets can take part in turns, push events and open channels. They would
                  appear here.<//
                >`
        }<//
      ><//
    >`;
  }
  return html`<${Panes} id="live" class="p-live" title="Live" show=${show}>
    <${Pane} label="Feature sets" class="v-sets"
      >${error && html`<div class="p12"><${ErrorNote} error=${error} onRetry=${() => take()} /></div>`}<${Sets}
        told=${here}
        tabs=${tabs}
    /><//>
    <${Pane} label="Hook playground" class="v-play"><${Playground} told=${here} tabs=${tabs} inputRef=${input} /><//>
    <${Pane} label="Events and channels" class="v-feed"><${Feed} told=${here} tabs=${tabs} /><//
  ><//>`;
}

export const livePanel = {
  id: "live",
  title: "Live",
  group: "Extensions",
  icon: "live",
  key: "l",
  keys: [
    ["Ctrl Enter", "run the hooks"],
    ["/", "write what the user says"],
  ],
  count: () => {
    const waits = useStore(
      live,
      each => (each.told?.events?.filter(row => row.state === "waits").length ?? 0) + (each.told?.asked?.length ?? 0),
    );
    return waits ? { hot: waits } : undefined;
  },
  Panel,
};
