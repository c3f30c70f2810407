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
