// Drives a headless Chromium: one command a line on stdin, one answer a line on stdout, both JSON.
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [executablePath, ...args] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath, args, headless: true });
const page = await browser.newPage();
await page.setViewport({ width: 560, height: 330 });

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
const commands = {
  open: async url => (await page.goto(url), true),
  page: script => until(() => page.mainFrame(), script),
  frame: script => until(frame, script),
  click: async selector => (await (await frame().waitForSelector(selector)).click(), true),
  shot: async path => (await page.screenshot({ path }), true),
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
