// Lays out large trees beside the page, so that it stays responsive.
import { layout } from "./lanes.js";

addEventListener("message", ({ data: { id, asked } }) => {
  const made = layout(asked);
  const buffers = Object.values(made)
    .filter(value => value instanceof Int32Array)
    .map(value => value.buffer);
  postMessage({ id, made }, buffers);
});
