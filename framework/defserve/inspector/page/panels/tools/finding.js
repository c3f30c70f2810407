// Finds tools by name, description and parameters. Typing errors are forgiven.

// The number of single changes between two words, up to 2.
function distance(a, b) {
  if (Math.abs(a.length - b.length) > 2) return 3;
  let before = Array.from({ length: b.length + 1 }, (_, at) => at);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++)
      row[j] = Math.min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    before = row;
  }
  return before[b.length];
}

const wordsIn = text =>
  text
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .filter(Boolean);

function score(tool, word) {
  const { name, title, about, schema } = tool;
  const lower = name.toLowerCase();
  if (lower.startsWith(word)) return 100;
  if (lower.includes(word)) return 80;
  if (`${title} ${about}`.toLowerCase().includes(word)) return 50;
  const parameters = Object.keys(schema.properties ?? {});
  if (parameters.some(each => each.toLowerCase().includes(word)) || tool.set?.includes(word)) return 40;
  if (word.length < 4) return 0;
  const near = (text, points) =>
    wordsIn(text.replace(/_/g, " ")).some(each => distance(each, word) <= (word.length > 6 ? 2 : 1)) ? points : 0;
  return near(name, 30) || near(about, 15) || near(parameters.join(" "), 10);
}

// The tools that fit every word, best first; all of them if nothing is searched for.
export function find(tools, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return tools;
  const scored = tools
    .map(tool => [words.map(word => score(tool, word)), tool])
    .filter(([each]) => each.every(Boolean));
  const sum = each => each.reduce((all, one) => all + one, 0);
  return scored.sort(([a], [b]) => sum(b) - sum(a)).map(([, tool]) => tool);
}

// The tool whose name is nearest to a text that found nothing.
export const nearest = (tools, text) =>
  tools
    .map(tool => [distance(tool.name.toLowerCase(), text.toLowerCase()), tool.name])
    .filter(([far]) => far <= 2)
    .sort(([a], [b]) => a - b)[0]?.[1];
