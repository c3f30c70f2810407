// Appended to the search of the theme. People type questions, and the search wants every word in one section: so words
// that say nothing are left out, and if no section has all of the others, sections with the most of them are shown.
// Unless a name is sought, pages whose title and keywords are about the question come first, and the reference last.
{
  const EMPTY = new Set(
    (
      "a about am an and any are as at be been by can could do does for from get has have how i in into is it its " +
      "me my of on one or our should so some that the their them then there this to use used using want was we what " +
      "when where which who why will with without would you your"
    ).split(" "),
  );
  // A page is worth one for each word that it is about, more for those in its title. A section that has all words is
  // worth something, too. Pages that are about so much of the question are shown, whatever the search has found.
  const IN_TITLE = 1.2;
  const ALL_IN_ONE = 1;
  const MIN_SHARE = 0.6;
  const MAX_ADDED = 3;

  const answer = self.onmessage;
  const post = self.postMessage.bind(self);
  const subjects = new Map(); // page → { id, title, keywords }, as words without their endings
  let again = null,
    question = null,
    isWhole = true,
    items = [];

  const stems = text =>
    (text.toLowerCase().match(/[a-z0-9]+/g) ?? []).map(each => each.replace(/(?<=...)(ing|ed|es|s|e)$/, ""));
  const pageOf = ({ id }) => items[id].location.split("#")[0];
  const isReference = each => Number(pageOf(each).startsWith("reference/"));
  const worthOf = page => {
    const { title, keywords } = subjects.get(page) ?? { title: [], keywords: [] };
    const worth = question.map(word => (title.includes(word) ? IN_TITLE : Number(keywords.includes(word))));
    return worth.reduce((one, other) => one + other, 0);
  };

  const sortBySubject = found => {
    const worth = new Map([...subjects.keys()].map(page => [page, worthOf(page)]));
    const shown = new Set(found.map(pageOf));
    const missing = [...subjects].filter(
      ([page]) => !shown.has(page) && !page.startsWith("reference/") && worth.get(page) >= MIN_SHARE * question.length,
    );
    missing.sort(([one], [other]) => worth.get(other) - worth.get(one));
    const added = missing.slice(0, MAX_ADDED).map(([, { id }]) => ({ id, matches: [] }));
    const bonus = new Map(found.map(({ id }) => [id, isWhole ? ALL_IN_ONE : 0]));
    const total = each => (worth.get(pageOf(each)) ?? 0) + (bonus.get(each.id) ?? 0);
    return [...found, ...added].sort(
      (one, other) => isReference(one) - isReference(other) || total(other) - total(one),
    );
  };

  self.postMessage = message => {
    if (message.type !== 3) return post(message);
    const words = again;
    again = null;
    isWhole = words !== null || question?.length === 1;
    if (message.data.items.length === 0 && words) {
      const operands = words.map(word => ({
        type: "value",
        data: { field: "*", value: { type: "prefix", data: word } },
      }));
      return answer({ data: { type: 2, data: { input: { type: "operator", data: { operator: "or", operands } } } } });
    }
    if (question) message.data.items = sortBySubject(message.data.items);
    return post(message);
  };

  self.onmessage = event => {
    const { type, data } = event.data;
    if (type === 0) {
      items = data.items;
      for (const [id, { location, title, keywords = "" }] of items.entries())
        if (!location.includes("#")) subjects.set(location, { id, title: stems(title), keywords: stems(keywords) });
    }
    if (type !== 2 || typeof data?.input !== "string") return answer(event);
    const isName = /[._]|[a-z][A-Z]|^[A-Z]/.test(data.input);
    const typed = data.input.split(/[\s?!,;]+/).filter(Boolean);
    const words = typed.filter(word => !EMPTY.has(word.toLowerCase()));
    const sought = words.length > 0 ? words : typed;
    const isFirst = !data.page && !data.filter;
    question = isFirst && !isName && sought.length > 0 ? stems(sought.join(" ")) : null;
    again = sought.length > 1 && isFirst ? sought : null;
    return answer({ data: { type, data: { ...data, input: sought.join(" ") } } });
  };
}
