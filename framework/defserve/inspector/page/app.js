// The frame: top bar, sidebar, status line, and the panel in view.
import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/preact.js";
import { ask, connect, on, onOpen } from "./socket.js";
import { addressOfPanel, app, connection, readRoute, setTheme, toast, useStore } from "./store.js";
import { listenToKeys, useKeys } from "./keys.js";
import { day, number, plural } from "./format.js";
import { Button, Chip, Copy, Segments } from "./parts/controls.js";
import { guardTexts, showHidden } from "./parts/hidden.js";
import { Icon } from "./parts/icons.js";
import { Toasts } from "./parts/layers.js";
import { Empty, ErrorNote, Loading, Note } from "./parts/notes.js";
import { SignInButton, learnAccount } from "./parts/signing.js";
import { SignInBanner, SignedIn, showsSignIn } from "./account.js";
import { KeysTable, Palette } from "./overlays.js";
import { QuestionDialogs, startQuestions, useOpenQuestions } from "./questions.js";
import { GROUPS, PHONE, load, loadAll, loaded, panels } from "./panels/index.js";

const ERAS = [
  ["handshake", "Handshake"],
  ["stateless", "Stateless"],
];
const OTHER = { handshake: "stateless", stateless: "handshake" };

export async function switchEra(era) {
  const before = app.get().era;
  if (!era || era === before) return;
  app.set({ era });
  try {
    const told = await ask("era.open", { era });
    learn(told);
  } catch (error) {
    toast(`${era === "handshake" ? "The handshake era" : "The stateless era"} is not there: ${error.message}`, "bad");
    app.set({ era: before });
  }
}

function learn(told) {
  if (!told.era) {
    app.set(state => ({ connections: { ...state.connections, "": told } }));
    return;
  }
  app.set(state => ({
    connections: {
      ...state.connections,
      [told.era]: {
        server: state.connections[told.era]?.server,
        speaks: state.connections[told.era]?.speaks,
        ...told,
        at: Date.now(),
      },
    },
    era: state.era || told.era,
  }));
}

const now = state => connection(state) ?? state.connections[""];
const serverName = state => now(state)?.server?.name ?? state.target.address;

function Top() {
  const state = useStore(app);
  const { server, speaks = [] } = now(state) ?? {};
  const dark = state.theme === "dark";
  return html`<header class="top">
    <div class="brand" aria-label="defserve"><b>def</b><span>serve</span></div>
    <div class="target">
      <strong class="cut">${serverName(state)}</strong
      >${server?.version && html`<${Chip} tone="out" class="no-m">${server.version}<//>`}
      ${state.target.saved && html`<${Chip} tone="acc" title=${state.target.saved.name}>saved session<//>`}
      ${speaks
        .filter(([name]) => name !== "MCP")
        .map(
          ([name, version]) =>
            html`<${Chip} class="no-m" key=${name}>${name} ${String(version).replace(/\.0$/, "")}<//>`,
        )}
    </div>
    <div class="grow"></div>
    <${Button} icon="search" plain class="no-m find" onClick=${() => app.set({ overlay: "palette" })} keys="Ctrl K"
      ><span class="faint">Find a tool, message, panel</span><//
    >
    <${Segments} label="Era" class="no-m" options=${ERAS} value=${state.era} onChange=${switchEra} />
    <${Button}
      icon="swap"
      small
      class="only-m"
      label=${`Era: ${state.era}. Switch`}
      onClick=${() => switchEra(OTHER[state.era])}
      >${ERAS.find(([id]) => id === state.era)?.[1] ?? "Era"}<//
    >
    <${SignedIn} /><${Button}
      icon=${dark ? "sun" : "moon"}
      plain
      label=${dark ? "Switch to light" : "Switch to dark"}
      onClick=${() => setTheme(dark ? "light" : "dark")}
    />
  </header>`;
}

// What a server must offer for a panel to have something, by its capability or its protocol. Other panels always have.
const NEEDS = {
  resources: "resources",
  prompts: "prompts",
  events: "events",
  state: "MCPL",
  live: "MCPL",
  security: "MGP",
};

// Panels that list what a server has: with none, there is nothing to see.
const COUNTED = ["resources", "prompts", "apps", "events", "skills", "kernel"];

function isOffered(panel, offers, speaks) {
  const needs = NEEDS[panel];
  return !needs || !offers || offers.includes(needs) || speaks.some(([name]) => name === needs);
}

// Drawn anew (by its key) when the module of its panel has come: that brings a hook.
function NavItem({ panel, whole, current }) {
  const count = whole?.count?.();
  const hot = count?.hot;
  const offers = useStore(app, state => now(state)?.offers);
  const speaks = useStore(app, state => now(state)?.speaks);
  const address = useStore(app, state => addressOfPanel(panel, state.items));
  const isIdle = !count && ((COUNTED.includes(panel.id) && count === 0) || !isOffered(panel.id, offers, speaks));
  return html`<a
    class=${`nav${isIdle ? " idle" : ""}`}
    href=${address}
    aria-current=${current ? "page" : null}
    title=${isIdle ? `${panel.title}: this server offers nothing here` : panel.title}
  >
    <${Icon} name=${panel.icon} /><span>${panel.title}</span>${
      hot
        ? html`<span class="n hot">${hot}</span>`
        : typeof count === "number" && count > 0
          ? html`<span class="n">${number(count)}</span>`
          : null
    }</a
  >`;
}

function Side() {
  const current = useStore(app, state => state.route.panel);
  const whole = useStore(loaded);
  return html`<nav class="side" aria-label="Panels">
    ${GROUPS.map(group => {
      const inside = panels.filter(panel => panel.group === group);
      return (
        inside.length > 0 &&
        html`<h3 key=${group}>${group}</h3>
          ${inside.map(
            panel =>
              html`<${NavItem}
                key=${`${panel.id} ${!!whole[panel.id]}`}
                panel=${panel}
                whole=${whole[panel.id]}
                current=${panel.id === current}
              />`,
          )}`
      );
    })}
  </nav>`;
}

function PhoneTabs() {
  const { route, items, more } = useStore(app);
  const waiting = useOpenQuestions().length,
    badge = waiting > 0 && html`<span class="n hot">${waiting}<span class="vh"> wait</span></span>`;
  const tabs = PHONE.map(id => panels.find(panel => panel.id === id)).filter(Boolean);
  const others = panels.filter(panel => !tabs.includes(panel));
  const isCurrent = panel => panel.id === route.panel && !more;
  return html`${
      more &&
      html`<div class="pop morepop" role="menu" aria-label="More panels">
        ${others.map(
          panel =>
            html`<a
              role="menuitem"
              class="nav"
              key=${panel.id}
              href=${addressOfPanel(panel, items)}
              onClick=${() => app.set({ more: false })}
              ><${Icon} name=${panel.icon} /><span>${panel.title}</span>${panel.id === "questions" && badge}</a
            >`,
        )}
      </div>`
    }
    <nav class="tabs-m" aria-label="Panels, in short">
      ${tabs.map(
        panel =>
          html`<a
            key=${panel.id}
            href=${isCurrent(panel) ? "#" + panel.id : addressOfPanel(panel, items)}
            aria-current=${isCurrent(panel) ? "page" : null}
          >
            <${Icon} name=${panel.icon} /><span>${panel.title}</span></a
          >`,
      )}
      ${
        others.length > 0 &&
        html`<button
          type="button"
          aria-expanded=${String(more)}
          aria-haspopup="menu"
          onClick=${() => app.set({ more: !more })}
        >
          <${Icon} name="more" /><span>More</span>${badge}
        </button>`
      }
    </nav>`;
}

const STATES = {
  open: ["ok", "Connected"],
  opening: ["dim", "Connecting"],
  lost: ["warn", "Not connected"],
  exited: ["bad", "Exited"],
  refused: ["bad", "Refused"],
  closed: ["dim", "Closed"],
};

function Foot() {
  const state = useStore(app);
  const told = now(state);
  const { saved } = state.target;
  const [tone, words] =
    state.socket !== "open"
      ? STATES.lost
      : saved && told?.state === "open"
        ? ["acc", `Saved session of ${day(saved.time)}, read only`]
        : STATES[told?.state ?? "opening"];
  const { messages = 0, rate, median, errors } = state.status;
  return html`<footer class="foot" aria-label="Status">
    <span class=${`row gap4 ${tone}`}><span class="dot"></span>${words}</span>${
      state.target.starts &&
      html`<button type="button" class="shortcuts" onClick=${restart}>
        ${told?.state === "exited" ? "Start again" : "Restart"}
      </button>`
    }<span class="cut">${state.target.address}</span>
    <span class="num">${plural(messages, "message")}</span
    >${rate > 0 && html`<span class="num">${rate} calls a second</span>`}
    ${median != null && html`<span class="num">median ${median} ms</span>`}${
      errors > 0 && html`<span class="num">${plural(errors, "error")}</span>`
    }<span class="grow"></span
    ><button type="button" class="shortcuts" onClick=${() => app.set({ overlay: "keys" })}>
      Shortcuts <kbd>?</kbd>
    </button>
  </footer>`;
}

// Ends the server's process, if it runs, and starts it again. What is on the page stays.
export const restart = () => ask("connection.restart").catch(error => toast(error.message, "bad"));

const MOST_LINES = 8;

// The server's process has ended. It is started again by hand: one that crashes at once would do so for ever.
function Exited({ told }) {
  const [all, setAll] = useState(false);
  const { lines = [], started = true } = told.exit ?? {};
  const [head, ...rest] = String(told.message).split("\n");
  const first = head.replace(/; its last words:$/, "");
  const written = lines.length ? lines : rest;
  return html`<div class="banner">
    <${Note}
      tone="bad"
      role="alert"
      fact=${started ? `${first}.` : `${first} before it served.`}
      actions=${html`<${Button} small primary icon="repeat" onClick=${restart}>Start again<//>${
          written.length > 0 &&
          html`<${Copy} text=${[first, ...written].join("\n")} label="Copy the last lines">Copy<//>`
        }${
          written.length > MOST_LINES &&
          html`<${Button} small plain aria-expanded=${String(all)} onClick=${() => setAll(!all)}
            >${all ? "Fewer lines" : `All ${written.length} lines`}<//
          >`
        }`}
    >
      ${" "}What is on this page
      stays.${
        written.length > 0 &&
        html`<pre class="lastlines" tabindex="0" role="region" aria-label="Its last lines">
${(all ? written : written.slice(-MOST_LINES)).join("\n")}</pre>`
      }<//
    >
  </div>`;
}

// The newest version of a server that `dev` reloads does not start.
const BuildProblem = ({ where, text, lines, serving }) =>
  html`<div class="banner">
    <${Note}
      tone=${serving ? "warn" : "bad"}
      role="alert"
      fact=${where ? `${where}: ${text}` : text}
      actions=${html`<${Copy} text=${[where, text, ...lines].join("\n")} label="Copy the problem">Copy<//>`}
    >
      ${" "}${serving ? "The old version is still serving." : "It is tried again when a file changes."}${
        lines.length > 0 &&
        html`<pre class="lastlines" tabindex="0" role="region" aria-label="Where it happened">${lines.join("\n")}</pre>`
      }<//
    >
  </div>`;

function Banner() {
  const state = useStore(app);
  const told = now(state);
  if (state.socket === "open" && state.build) return html`<${BuildProblem} ...${state.build} />`;
  if (state.socket === "refused") return null;
  if (state.socket === "lost") {
    return html`<div class="banner">
      <${Note} tone="warn" role="status" fact="The inspector went away."
        >Trying again. If it was ended, start it again and open its new address.<//
      >
    </div>`;
  }
  if (state.socket === "open" && showsSignIn(state.account)) return html`<div class="banner"><${SignInBanner} /></div>`;
  if (state.socket === "open" && told?.state === "exited") return html`<${Exited} told=${told} />`;
  if (state.socket !== "open" || !["lost", "refused"].includes(told?.state)) return null;
  const away = told.state === "lost";
  const [first, ...rest] = String(told.message).split("\n");
  return html`<div class="banner">
    <${Note}
      tone=${away ? "warn" : "bad"}
      role="status"
      fact=${away ? `${serverName(state)} is not there.` : `${serverName(state)} refuses the conversation.`}
      actions=${html`<${SignInButton} error=${told} primary /><${Button}
          small
          onClick=${() => ask("connection.retry", { era: state.era })}
          >Try now<//
        >`}
    >
      ${first}${/[.!?]$/.test(first) ? "" : "."}${" "}
      ${away && told.next ? `Trying again in ${told.next} s.` : ""}${
        rest.length > 0 && html`<pre class="wraps">${rest.join("\n")}</pre>`
      }
      ${told.fix && html`<p class="fix"><b>fix:</b> ${told.fix}</p>`}<//
    >
  </div>`;
}

function Refused() {
  return html`<main class="main" id="main">
    <h1 class="vh">Inspector</h1>
    <${Empty} icon="key" title="This address needs its token"
      >Open the address that defserve printed in the terminal. It ends with the token.<//
    >
  </main>`;
}

// The panel in view, or what is shown until its module has come.
function Shown({ panel }) {
  const whole = useStore(loaded)[panel.id];
  useEffect(() => {
    if (!whole) load(panel);
  }, [panel]);
  // Whatever a server says, the rest of the page stays.
  const [broken, mend] = useErrorBoundary(error => console.warn("a panel could not be drawn", error));
  if (broken)
    return html`<main class="main" id="main" tabindex="-1">
      <h1 class="vh">${panel.title}</h1>
      <div class="pad"><${ErrorNote} error=${broken} fact="This panel could not be drawn." onRetry=${mend} /></div>
    </main>`;
  if (whole?.Panel) return html`<${whole.Panel} key=${panel.id} />`;
  return html`<main class="main" id="main" tabindex="-1">
    <h1 class="vh">${panel.title}</h1>
    ${
      whole?.error
        ? html`<div class="pad">
            <${ErrorNote}
              error=${whole.error}
              fact="This panel could not be loaded."
              onRetry=${() => {
                loaded.set({ [panel.id]: undefined });
                load(panel);
              }}
            />
          </div>`
        : html`<${Loading} rows=${6} />`
    }
  </main>`;
}

function App() {
  const panelId = useStore(app, state => state.route.panel);
  const overlay = useStore(app, state => state.overlay);
  const refused = useStore(app, state => state.socket === "refused");
  const panel = panels.find(each => each.id === panelId) ?? panels[0];
  const title = useStore(app, serverName);
  const actions = overlay === "palette" ? listActions() : [];
  useEffect(() => {
    document.title = showHidden(`${panel.title} · ${title || "defserve"} · defserve`);
  }, [panel, title]);
  useKeys({
    "ctrl+k": () => app.set({ overlay: "palette" }),
    "?": () => app.set({ overlay: "keys" }),
    e: () => {
      switchEra(OTHER[app.get().era]);
    },
    "[": () => nextPane(-1),
    "]": () => nextPane(1),
  });
  return html`<a
      class="skip"
      href="#main"
      onClick=${event => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}
      >Skip to the panel</a
    >
    <div class="app">
      <${Top} /><${Side} />${
        refused ? html`<${Refused} />` : html`<${Shown} key=${panel.id} panel=${panel} />`
      }<${Foot} /><${PhoneTabs} /><${Banner} />
    </div>
    <${QuestionDialogs} />${
      overlay === "palette" && html`<${Palette} panels=${panels} loaded=${loaded.get()} actions=${actions} />`
    }${
      overlay === "keys" && html`<${KeysTable} panels=${panels} panel=${panel} keys=${loaded.get()[panel.id]?.keys} />`
    }<${Toasts} />`;
}

// What can be done from anywhere, for Ctrl K.
function listActions() {
  const { era, target, theme } = app.get();
  const other = theme === "dark" ? "light" : "dark";
  return [
    target.starts && { title: "Restart the server", icon: "repeat", run: restart },
    { title: `Switch to the ${OTHER[era] ?? "other"} era`, icon: "swap", run: () => switchEra(OTHER[era]) },
    { title: `Switch to ${other}`, icon: other === "dark" ? "moon" : "sun", run: () => setTheme(other) },
    { title: "Show the shortcuts", icon: "question", run: () => app.set({ overlay: "keys" }) },
  ].filter(Boolean);
}

function nextPane(step) {
  const panes = [...document.querySelectorAll("main .pane")].filter(each => each.offsetParent);
  const at = panes.findIndex(each => each.contains(document.activeElement));
  const next = panes[(at + step + panes.length) % panes.length];
  (next?.querySelector("[role=listbox], [role=grid], [role=treegrid], input, button, [tabindex='0']") ?? next)?.focus();
}

readRoute();
addEventListener("hashchange", readRoute);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", event => {
  if (!localStorage.getItem("defserve.theme")) {
    document.documentElement.dataset.theme = event.matches ? "dark" : "light";
    app.set({ theme: document.documentElement.dataset.theme });
  }
});
listenToKeys(panels);
on("connection", learn);
on("account", account => learnAccount(account));
on("build", build => app.set({ build }));
on("status", status => app.set({ status }));
startQuestions();
loaded.get().tools.start();
onOpen(async () => {
  const hello = await ask("hello");
  app.set(state => ({
    target: hello.target,
    status: hello.status,
    build: hello.build,
    questions: hello.questions,
    era: state.era || hello.era,
  }));
  learnAccount(hello.account, false);
  hello.connections.forEach(learn);
  loadAll();
});
connect();
guardTexts();
render(html`<${App} />`, document.getElementById("app"));
