// What scrolls sideways, code and wide tables, can be scrolled by the keyboard too.
const reachable = () => {
  for (const each of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
};
new ResizeObserver(reachable).observe(document.body);
addEventListener("load", reachable);
