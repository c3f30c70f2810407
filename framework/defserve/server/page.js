for (const b of document.querySelectorAll("button")) {
  b.hidden = false;
  b.onclick = async () => {
    const t = b.previousElementSibling;
    try {
      await navigator.clipboard.writeText(t.textContent);
    } catch {
      getSelection().selectAllChildren(t);
      document.execCommand("copy");
    }
    b.textContent = "Copied";
    setTimeout(() => {
      b.textContent = "Copy";
    }, 2e3);
  };
}
