// What scrolls sideways, code and wide tables, can be scrolled by the keyboard too.
const reachable = () => {
  for (const each of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap, .drawing, .screen")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
};
new ResizeObserver(reachable).observe(document.body);
addEventListener("load", reachable);

// What moves can be stopped, and seen again. Who wants no motion gets the last picture, and no button.
for (const place of document.querySelectorAll(".terminal")) {
  const moves = place.querySelector("svg").getAnimations({ subtree: true });
  if (moves.length === 0) continue;
  const button = document.createElement("button");
  const isOver = () => moves.every(each => each.playState === "finished");
  const name = () => {
    const paused = moves.some(each => each.playState === "paused");
    button.textContent = isOver() ? "Play again" : paused ? "Play" : "Pause";
  };
  button.onclick = () => {
    const over = isOver();
    const plays = moves.some(each => each.playState === "running");
    for (const each of moves) {
      if (over) each.currentTime = 0;
      if (over || !plays) each.play();
      else if (each.playState !== "finished") each.pause();
    }
    name();
  };
  for (const each of moves) each.onfinish = name;
  name();
  place.append(button);
}

// The theme calls the place of each Copy button a landmark. There are many, and none has a name.
const unmark = () => {
  for (const each of document.querySelectorAll(".md-code__nav:not([role])")) each.setAttribute("role", "none");
};
new MutationObserver(unmark).observe(document.body, { childList: true, subtree: true });
unmark();

// The search is in a shadow root, where the stylesheet of the site does not reach.
const SEARCH_STYLE = `
  dialog[class] { align-items: flex-start; --alpha-light: 1; --alpha-lighter: 0.7; }
  dialog[class] > div + div {
    top: 12vh; height: auto; max-height: 70vh;
    border-color: var(--line-strong); background: var(--surface); box-shadow: var(--float);
  }
  dialog input { padding: 0 8px; }
  dialog input::placeholder { color: var(--text-3); opacity: 1; }
  [role=status] { color: var(--text-3); }
  [role=option]::before { background: var(--accent-weak); }
  [role=option] h2 { color: var(--text); }
  [role=option] menu, [role=option] menu li { color: var(--text-2); white-space: normal; }
  [role=option] div div { color: var(--text-2); }
  [role=option] code { background: var(--hover); }
  [role=option] mark { color: var(--accent); }
  [role=listbox]:empty::before {
    padding: 4px 10px; font-size: 14px; color: var(--text-2); content: "Try fewer words, or another one.";
  }
  dialog:has(input:placeholder-shown) [role=listbox]:empty::before {
    content: "Ask a question, or type a name: return an image, OAuth, Depends, defserve kernel";
  }
  [aria-label=Filters] { display: none; }
  [aria-label="Close search"] { order: 1; }
  [aria-label="Close search"] svg { display: none; }
  [aria-label="Close search"]::after {
    position: relative; padding: 1px 6px; border: 1px solid var(--line-strong); border-radius: 4px;
    font: 12px/18px var(--sans); color: var(--text-2); content: "Esc";
  }
  @media (max-width: 740px) {
    dialog[class] > div + div { top: 0; height: 100%; max-height: none; }
    [aria-label="Close search"]::after { border: 0; font-size: 18px; content: "✕"; }
  }`;
const dressSearch = () => {
  const root = [...document.querySelectorAll("body > div")].find(each => each.shadowRoot)?.shadowRoot;
  const dialog = root?.querySelector("dialog");
  if (!dialog) return false;
  const style = document.createElement("style");
  style.textContent = SEARCH_STYLE;
  root.append(style);
  dialog.querySelector("input").placeholder = "Search or ask";
  // A result is called what it shows: its title, where it is, and the words around what was found.
  const name = () => {
    for (const each of dialog.querySelectorAll("[role=option][aria-labelledby]"))
      each.removeAttribute("aria-labelledby");
  };
  new MutationObserver(name).observe(dialog, { attributeFilter: ["aria-labelledby"], childList: true, subtree: true });
  return true;
};
const wait = setInterval(() => dressSearch() && clearInterval(wait), 50);

// The page for an address that leads nowhere offers the search.
for (const button of document.querySelectorAll(".missing-search")) {
  button.hidden = false;
  button.onclick = () => document.querySelector(".md-search__button").click();
}
