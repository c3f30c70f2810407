// Appended to the search of the theme. People type questions, and the search wants every word in one section: so words
// that say nothing are left out, and if no section has all of the others, sections with the most of them are shown.
// Guides stand above the reference, unless a name is sought.
{
  const EMPTY = new Set(
    (
      "a about am an and any are as at be been by can could do does for from get has have how i in into is it its " +
      "me my of on one or our should so some that the their them then there this to use used using want was we what " +
      "when where which who why will with without would you your"
    ).split(" "),
  );
  const answer = self.onmessage;
  const post = self.postMessage.bind(self);
  let again = null,
    named = false,
    items = [];
  const isReference = ({ id }) => Number(items[id].location.startsWith("reference/"));
  self.postMessage = message => {
    const words = again;
    again = null;
    if (message.type !== 3) return post(message);
    if (message.data.items.length > 0 || !words) {
      if (!named) message.data.items.sort((one, other) => isReference(one) - isReference(other));
      return post(message);
    }
    const operands = words.map(word => ({
      type: "value",
      data: { field: "*", value: { type: "prefix", data: word } },
    }));
    answer({ data: { type: 2, data: { input: { type: "operator", data: { operator: "or", operands } } } } });
  };
  self.onmessage = event => {
    const { type, data } = event.data;
    if (type === 0) items = data.items;
    if (type !== 2 || typeof data?.input !== "string") return answer(event);
    named = /[._]|[a-z][A-Z]|^[A-Z]/.test(data.input);
    const typed = data.input.split(/[\s?!,;]+/).filter(Boolean);
    const words = typed.filter(word => !EMPTY.has(word.toLowerCase()));
    const sought = words.length > 0 ? words : typed;
    again = sought.length > 1 && !data.page && !data.filter ? sought : null;
    return answer({ data: { type, data: { ...data, input: sought.join(" ") } } });
  };
}
