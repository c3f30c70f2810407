// Drives a headless Chromium: one command a line on stdin, one answer a line on stdout, both JSON. Each has a number, so
// that an answer nobody waited for is not taken for that of the next command.
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [executablePath, ...args] = process.argv.slice(2);
const SECONDS = 1000, LIMIT = 100 * SECONDS;
const browser = await puppeteer.launch({ executablePath, args, headless: true, timeout: 60 * SECONDS });
let context = null, first = null, page = null, complaints = [], asked = [], cdp = null;

// A page in a profile of its own: nothing of what was before is in it.
const begin = async () => {
  const before = context;
  context = await browser.createBrowserContext();
  first = page = await context.newPage();
  page.setDefaultTimeout(30 * SECONDS);
  await page.setViewport({ width: 560, height: 330 });
  const complained = complaints = [], requested = asked = [];
  cdp = null;
  // What the browser complains of, such as something that a policy forbids.
  page.on("console", message => ["error", "warn"].includes(message.type()) && complained.push(message.text()));
  page.on("pageerror", error => complained.push(String(error)));
  page.on("request", request => requested.push(request.url()));
  await before?.close();
  return true;
};
const frame = () => page.frames().find(one => one.parentFrame() === page.mainFrame());
const until = async (find, script, limit = 60 * SECONDS) => {
  const deadline = Date.now() + limit;
  for (;;) {
    // A frame that is still loading cannot be asked; it can the next time.
    const found = await Promise.resolve().then(() => find()?.evaluate(script)).catch(() => undefined);
    if (found || Date.now() > deadline) return found ?? null;
    await new Promise(resolve => setTimeout(resolve, 20));
  }
};
const commands = {
  begin,
  // What the page before asks for while it goes is not this page's; behind an empty page nothing of it is left.
  open: async url => {
    complaints.length = asked.length = 0;
    await page.goto(url);
    if (url === "about:blank") complaints.length = asked.length = 0;
    return true;
  },
  early: async script => (await page.evaluateOnNewDocument(script), true),
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
  trace: async () => (await page.tracing.start({ categories: ["toplevel", "devtools.timeline"] }), true),
  // What the page's own thread did since `trace`: milliseconds of processor time of each task, and of the scripts in it.
  traced: async () => {
    const { traceEvents } = JSON.parse(Buffer.from(await page.tracing.stop()).toString());
    const main = new Set(traceEvents.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain").map(({ pid, tid }) => `${pid} ${tid}`));
    const took = wanted => traceEvents.filter(({ name, ph, pid, tid, tdur }) => ph === "X" && tdur !== undefined && main.has(`${pid} ${tid}`) && wanted.includes(name)).map(({ tdur }) => tdur / 1000);
    return { tasks: took(["ThreadControllerImpl::RunTask", "RunTask"]), scripts: took(["FunctionCall", "EvaluateScript", "FireAnimationFrame"]), layouts: took(["Layout", "UpdateLayoutTree"]) };
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
  // A long text comes in one piece, as if it were pasted: three messages a letter take seconds.
  type: async text => (await (text.length > 12 ? page.keyboard.sendCharacter(text) : page.keyboard.type(text)), true),
  upload: async ([selector, path]) => (await (await page.waitForSelector(selector)).uploadFile(path), true),
  page: script => until(() => page.mainFrame(), script),
  soon: script => until(() => page.mainFrame(), script, 5 * SECONDS),
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
    const deadline = Date.now() + 30 * SECONDS;
    for (;;) {
      const opened = (await context.pages()).filter(one => one !== first && one.url().startsWith("http"));
      if (opened.length > 0) return (page = opened.at(-1)).url();
      if (Date.now() > deadline) throw new Error("no tab was opened");
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  },
  leave: async () => (await page.close(), (page = first), await first.bringToFront(), true),
  tabs: async () => (await context.pages()).length - 1,
  shot: async path => (await page.screenshot({ path }), true),
  whole: async path => (await page.screenshot({ path, fullPage: true }), true),
};

const within = work => {
  let timer;
  const over = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`not done in ${LIMIT / SECONDS} s`)), LIMIT); });
  return Promise.race([work, over]).finally(() => clearTimeout(timer));
};

console.log(JSON.stringify({ id: 0, result: await browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
  const [id, name, argument] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ id, result: await within(commands[name](argument)) }));
  } catch (error) {
    console.log(JSON.stringify({ id, error: `${name} ${JSON.stringify(argument).slice(0, 200)}: ${error}` }));
  }
}
await browser.close();
