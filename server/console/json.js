// JSON as text. A document is shown, compared and stored as the text that it has, so that numbers such as
// 12345678901234567890 or 1.0 stay what they are: JavaScript's own would round them.

const TOKEN = /"(?:[^"\\]+|\\.)*"|[{}[\]:,]|[^\s"{}[\]:,]+/g;

const tokens = (text) => text.match(TOKEN) ?? [];

/** A valid JSON text with a line for each member. */
export function pretty(text) {
  let [out, depth] = ['', 0];
  const line = () => `\n${'  '.repeat(depth)}`;
  const all = tokens(text);
  all.forEach((token, at) => {
    if (token === '{' || token === '[') {
      depth += 1;
      out += token + (/^[}\]]$/.test(all[at + 1]) ? '' : line());
    } else if (token === '}' || token === ']') {
      depth -= 1;
      out += (/^[{[]$/.test(all[at - 1]) ? '' : line()) + token;
    } else if (token === ',') out += token + line();
    else if (token === ':') out += ': ';
    else out += token;
  });
  return out;
}

/**
 * The members of a valid JSON object: a map from names to texts without white space. The last of equal names counts.
 */
export function members(text) {
  const found = new Map();
  let [depth, name, value] = [0, null, ''];
  const end = () => {
    if (name !== null) found.set(name, value);
    [name, value] = [null, ''];
  };
  for (const token of tokens(text)) {
    if (token === '}' || token === ']') depth -= 1;
    if (depth === 0 || (depth === 1 && token === ',')) end();
    else if (depth === 1 && name === null) name = JSON.parse(token);
    else if (!(depth === 1 && token === ':' && value === '')) value += token;
    if (token === '{' || token === '[') depth += 1;
  }
  return found;
}

/** The elements of a valid JSON list, as texts without white space. */
export function elements(text) {
  const found = [];
  let [depth, value] = [0, ''];
  for (const token of tokens(text)) {
    if (token === '}' || token === ']') depth -= 1;
    if (depth === 0 || (depth === 1 && token === ',')) {
      if (value) found.push(value);
      value = '';
    } else value += token;
    if (token === '{' || token === '[') depth += 1;
  }
  return found;
}

/** The text of an object with these members. */
export const object = (map) => `{${[...map].map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(',')}}`;

/** What is wrong with a text that should be a JSON object, in a sentence; `null` if nothing is. */
export function mistake(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === 'object' && !Array.isArray(value)
      ? null
      : 'This is JSON, and it is no object: a document is { … }.';
  } catch (error) {
    const place = /position (\d+)/.exec(error.message);
    const before = place && text.slice(0, Number(place[1])).split('\n');
    return before
      ? `Line ${before.length}, column ${before.at(-1).length + 1}: ${error.message.replace(/ in JSON at position.*/, '')}`
      : error.message;
  }
}

/** The value of a JSON text; the text itself if it is none, as people type keys. */
export function loose(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
