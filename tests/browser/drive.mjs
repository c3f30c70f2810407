// Drives a headless Chromium: one command a line on stdin, one answer a line on stdout, both JSON.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [executablePath, ...args] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath, args, headless: true });
const page = await browser.newPage();
await page.setViewport({ width: 560, height: 330 });
// What the browser complains of, such as something that a policy forbids.
let complaints = [];
page.on("console", message => ["error", "warn"].includes(message.type()) && complaints.push(message.text()));
page.on("pageerror", error => complaints.push(String(error)));

const frame = () => page.frames().find(one => one.parentFrame() === page.mainFrame());
const until = async (find, script) => {
  const deadline = Date.now() + 20000;
  for (;;) {
    // A frame that is still loading cannot be asked; it can the next time.
    const found = await Promise.resolve().then(() => find()?.evaluate(script)).catch(() => undefined);
    if (found || Date.now() > deadline) return found ?? null;
    await new Promise(resolve => setTimeout(resolve, 20));
  }
};
// What axe-core finds serious or critical: the rule, and where.
const axe = async () => {
  await page.evaluate(readFileSync(new URL("./node_modules/axe-core/axe.min.js", import.meta.url), "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter(each => ["serious", "critical"].includes(each.impact));
  return serious.flatMap(each => each.nodes.map(node => `${each.id}: ${node.target.join(" ")} ${node.failureSummary}`));
};
const commands = {
  axe,
  keys: async names => { for (const name of names) await page.keyboard.press(name); return true; },
  type: async text => (await page.keyboard.type(text), true),
  hover: async selector => (await (await page.waitForSelector(selector)).hover(), true),
  open: async url => (complaints = [], await page.goto(url), true),
  size: async ([width, height]) => (await page.setViewport({ width, height }), true),
  scheme: async value => (await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]), true),
  scripts: async on => (await page.setJavaScriptEnabled(on), true),
  press: async selector => (await (await page.waitForSelector(selector)).click(), true),
  complaints: () => complaints,
  page: script => until(() => page.mainFrame(), script),
  frame: script => until(frame, script),
  click: async selector => (await (await frame().waitForSelector(selector)).click(), true),
  shot: async path => (await page.screenshot({ path }), true),
  whole: async path => (await page.screenshot({ path, fullPage: true }), true),
};

console.log(JSON.stringify({ result: await browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ result: await commands[name](argument) }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await browser.close();
