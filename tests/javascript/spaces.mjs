// Says where formatting changed the spaces of a text in html`…`. For prettier a line break there is a space; htm drops
// it, with all white space around it. Run by `python -m tests.javascript --fix` with a folder of npm packages, and the
// texts of files before and after on standard input: `{ path: [before, after] }`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { parse } = createRequire(join(process.argv[2], "node_modules", "_"))("acorn");

function* templates(node) {
  if (node?.type === "TaggedTemplateExpression" && node.tag.name === "html") yield node;
  for (const each of Object.values(node)) if (each && typeof each === "object") yield* templates(each);
}

// What is between the tags, as htm reads it: a tag is <>, an expression is {}, and a literal text stands for itself.
function textOf({ quasi: { quasis, expressions } }) {
  let read = "",
    inTag = false,
    quote = "";
  quasis.forEach(({ value }, at) => {
    let run = "";
    const end = () => {
      read += run.replace(/^\s*\n\s*|\s*\n\s*$/g, "").replace(/\s*\n\s*/g, " ");
      run = "";
    };
    for (const letter of value.cooked) {
      if (!inTag && letter !== "<") run += letter;
      else if (!inTag) {
        end();
        read += "<>";
        inTag = true;
      } else if (quote) quote = letter === quote ? "" : quote;
      else if (letter === '"' || letter === "'") quote = letter;
      else if (letter === ">") inTag = false;
    }
    if (inTag) return;
    end();
    const next = expressions[at];
    if (next) read += typeof next.value === "string" ? next.value : "{}";
  });
  return read;
}

const read = text => [...templates(parse(text, { ecmaVersion: 2023, sourceType: "module", locations: true }))];

for (const [path, [before, after]] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const formatted = read(after).map(textOf);
  read(before).forEach((template, at) => {
    const text = textOf(template);
    if (text !== formatted[at]) console.log(`${path}:${template.loc.start.line}\n  ${text}\n  ${formatted[at]}`);
  });
}
