// Drives a headless Chromium: one command a line on stdin, one answer a line on stdout, both JSON.
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [executablePath, ...args] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath, args, headless: true });
const first = await browser.newPage();
let page = first;
const known = await browser.pages();
await page.setViewport({ width: 560, height: 330 });
// What the browser complains of, such as something that a policy forbids.
let complaints = [];
page.on("console", message => ["error", "warn"].includes(message.type()) && complaints.push(message.text()));
page.on("pageerror", error => complaints.push(String(error)));
let asked = [], cdp = null;
page.on("request", request => asked.push(request.url()));

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
  open: async url => (complaints = [], asked = [], await page.goto(url), true),
  size: async ([width, height]) => (await page.setViewport({ width, height }), true),
  scheme: async value => (await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]), true),
  scripts: async on => (await page.setJavaScriptEnabled(on), true),
  hover: async selector => (await (await page.waitForSelector(selector)).hover(), true),
  drag: async ([selector, from, to]) => {
    const { x, y, width, height } = await (await page.waitForSelector(selector)).boundingBox();
    await page.mouse.move(x + width * from, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x + width * to, y + height / 2, { steps: 4 });
    return page.mouse.up().then(() => true);
  },
  cpu: async () => {
    cdp ??= await page.createCDPSession().then(session => session.send("Performance.enable", { timeDomain: "threadTicks" }).then(() => session));
    return 1000 * (await cdp.send("Performance.getMetrics")).metrics.find(({ name }) => name === "TaskDuration").value;
  },
  press: async selector => (await (await page.waitForSelector(selector)).click(), true),
  complaints: () => complaints,
  asked: () => asked,
  key: async names => {
    for (const name of names) {
      const parts = name.split("+");
      for (const held of parts.slice(0, -1)) await page.keyboard.down(held);
      await page.keyboard.press(parts.at(-1));
      for (const held of parts.slice(0, -1).reverse()) await page.keyboard.up(held);
    }
    return true;
  },
  type: async text => (await page.keyboard.type(text), true),
  upload: async ([selector, path]) => (await (await page.waitForSelector(selector)).uploadFile(path), true),
  page: script => until(() => page.mainFrame(), script),
  frame: script => until(frame, script),
  // The pointer is there first: a page may let events into a frame only then.
  click: async selector => {
    const element = await frame().waitForSelector(selector);
    await element.hover();
    await until(() => page.mainFrame(), "!document.querySelector('iframe').inert");
    return element.click().then(() => true);
  },
  // The newest tab that the page has opened is driven from now on, until it is closed.
  tab: async () => {
    const deadline = Date.now() + 20000;
    for (;;) {
      const opened = (await browser.pages()).filter(one => !known.includes(one) && one.url().startsWith("http"));
      if (opened.length > 0) return (page = opened.at(-1)).url();
      if (Date.now() > deadline) throw new Error("no tab was opened");
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  },
  leave: async () => (await page.close(), (page = first), await first.bringToFront(), true),
  tabs: async () => (await browser.pages()).length - known.length,
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
