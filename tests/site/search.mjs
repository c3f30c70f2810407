// The search of the built site, without a browser: questions as JSON on stdin, the addresses of the results on stdout.
import { readdirSync, readFileSync } from "node:fs";

const [site] = process.argv.slice(2);
const folder = `${site}/assets/javascripts/workers`;
const program = readdirSync(folder).find(name => name.startsWith("search."));
const index = JSON.parse(readFileSync(`${site}/search.json`, "utf8"));

let answered;
globalThis.self = { postMessage: message => answered(message) };
(0, eval)(readFileSync(`${folder}/${program}`, "utf8"));
const ask = (type, data) => new Promise(resolve => {
  answered = resolve;
  self.onmessage({ data: { type, data } });
});

await ask(0, index);
const results = {};
for (const question of JSON.parse(readFileSync(0, "utf8"))) {
  const { items } = (await ask(2, { input: question })).data;
  results[question] = items.map(({ id }) => index.items[id].location);
}
console.log(JSON.stringify(results));
