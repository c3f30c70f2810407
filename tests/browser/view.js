// A view that brings its own bridge: the view half of ext-apps.
import { App } from "@modelcontextprotocol/ext-apps";

const app = new App({ name: "view", version: "1" }, {});
const show = result => (document.querySelector("output").textContent = result.structuredContent.value);
app.ontoolresult = show;
document.querySelector("button").onclick = async () => show(await app.callServerTool({ name: "more", arguments: {} }));
await app.connect();
