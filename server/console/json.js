// JSON as text. A document is shown, compared and stored as the text that it has, so that numbers such as
// 12345678901234567890 or 1.0 stay what they are: JavaScript's own would round them.

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\]:,]|[^\s"{}[\]:,]+/g;

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

/** A JSON text as it is; another text as a string, as people type keys. */
export function loose(text) {
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

/** Members that hold secrets, or what secrets are made into. */
const SECRETS = new Set(['password', 'derived_key', 'salt', 'password_sha', 'totp', 'auth', 'headers']);

/** Databases whose documents hold secrets. */
const hasSecrets = (db) => /(^|\/)_(users|replicator)$/.test(db);

/** A valid JSON text without the secrets that documents of the server's own databases hold, for lists. */
export function masked(db, text) {
  if (!hasSecrets(db)) return text;
  const all = tokens(text);
  let [out, at] = ['', 0];
  for (; at < all.length; at += 1) {
    const token = all[at];
    if (!token.startsWith('"')) out += token;
    // A user and password in an address.
    else out += token.replace(/(\/\/)[^/"]*@/g, '$1•••@');
    if (!token.startsWith('"') || all[at + 1] !== ':' || !SECRETS.has(JSON.parse(token))) continue;
    out += ':"•••"';
    at += 2;
    for (let depth = 0; ; at += 1) {
      if (/^[{[]$/.test(all[at])) depth += 1;
      if (/^[}\]]$/.test(all[at])) depth -= 1;
      if (depth === 0) break;
    }
  }
  return out;
}
