// Runs before the first paint: the theme, and the token, which leaves the address bar.
(() => {
  const kept = localStorage.getItem("defserve.theme");
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const token = new URLSearchParams(location.search).get("token");
  if (token) {
    sessionStorage.setItem("defserve.token", token);
    history.replaceState(null, "", location.pathname + location.hash);
  }
})();
