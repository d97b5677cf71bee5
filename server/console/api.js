// Requests to the server that these pages come from, and who the user is.

/** The server's root. A proxy may serve it below a path. */
export const ROOT = new URL('..', document.baseURI);

/**
 * A name as a part of an address. A browser takes `.` and `..` out of it, however they are encoded: that would be
 * another resource.
 */
export function segment(name) {
  // Nor can it ask for nothing: that would be what the name is in.
  if (['', '.', '..'].includes(name))
    throw new Error(`A browser cannot ask for the name “${name}”. Use another client for it.`);
  return encodeURIComponent(name);
}

/** The address of a resource. An id's slash is part of its name, except the first one of a design document. */
export function url(...parts) {
  const path = parts.map((part) => {
    const [, kind, name] = /^(_design|_local)\/(.*)$/s.exec(part) ?? [];
    return kind ? `${kind}/${segment(name)}` : segment(part);
  });
  return new URL(path.join('/'), ROOT).href;
}

/** Parameters whose values are JSON, strings in quotes too. */
const KEYS = new Set(['startkey', 'endkey', 'key']);

/** A query string. What is undefined is left out. */
export function query(values) {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined);
  return pairs.length
    ? `?${new URLSearchParams(pairs.map(([name, value]) => [name, typeof value === 'string' && !KEYS.has(name) ? value : JSON.stringify(value)]))}`
    : '';
}

/** The server refused a request. */
export class Refused extends Error {
  constructor(status, error, reason) {
    super(
      reason ? `${reason}${/[.!?]$/.test(reason) ? '' : '.'} (${status} ${error})` : `The server answered ${status}.`,
    );
    Object.assign(this, { status, error, reason });
  }
}

/** The most bytes of an answer that are read: a page with more would stop the browser. */
export const MOST_BYTES = 16_000_000;

/** An answer is larger than a page reads. */
export class TooLarge extends Error {
  constructor() {
    super(`The answer is larger than ${MOST_BYTES / 1e6} MB, which is more than a page reads. Ask for less of it.`);
  }
}

/** The text of an answer. Of one that is too large, no more is read than that it is. */
async function bounded(answer) {
  const stop = async () => {
    await answer.body?.cancel();
    throw new TooLarge();
  };
  // For a packed answer this is its packed length, which is usually the smaller one.
  if (Number(answer.headers.get('content-length')) > MOST_BYTES) await stop();
  if (!answer.body) return '';
  const [reader, decoder, parts] = [answer.body.getReader(), new TextDecoder(), []];
  let bytes = 0;
  for (let piece; !(piece = await reader.read()).done;) {
    bytes += piece.value.length;
    if (bytes > MOST_BYTES) {
      await reader.cancel();
      throw new TooLarge();
    }
    parts.push(decoder.decode(piece.value, { stream: true }));
  }
  return parts.join('') + decoder.decode();
}

const listeners = new Set();

/** Calls `listener` when a request is refused since nobody is signed in any more. */
export const onSignedOut = (listener) => listeners.add(listener);

/** Who the user was when the page was opened. */
let opener = null;

/** A page begins: what it changes is changed as the user of now, or not at all. */
export const beginPage = () => {
  opener = session.name;
};

/**
 * Refuses if the user is another one than at the page's beginning: the session ended, or somebody signed in elsewhere
 * in this browser. A database that is open to everybody would store the edit in nobody's name.
 */
async function sameUser() {
  await whoAmI();
  if (session.name === opener) return;
  if (!session.name) listeners.forEach((listener) => listener());
  throw new Error(
    `Nothing was sent: ${opener ?? 'nobody'} opened this page, and ${session.name ?? 'nobody'} is signed in now.`,
  );
}

/**
 * Sends a request and returns the text of its answer.
 * `body` is sent as JSON, and as it is if it is text or bytes. `reads`: a POST that changes nothing.
 */
export async function text(method, address, { body, type = 'application/json', signal, headers, reads } = {}) {
  const isSession = address === url('_session');
  if (method !== 'GET' && !reads && !isSession) await sameUser();
  let answer;
  try {
    answer = await fetch(address, {
      method,
      signal,
      credentials: 'same-origin',
      cache: 'no-store',
      headers: {
        accept: 'application/json',
        ...(body === undefined ? {} : { 'content-type': type }),
        ...headers,
      },
      body: body === undefined || typeof body === 'string' || body instanceof Blob ? body : JSON.stringify(body),
    });
  } catch (error) {
    throw error.name === 'AbortError' ? error : new Error('The server cannot be reached.', { cause: error });
  }
  const content = await bounded(answer).catch((error) => {
    if (error instanceof TooLarge || error.name === 'AbortError') throw error;
    throw new Error('The server broke its answer off.', { cause: error });
  });
  if (answer.ok) return content;
  let said = {};
  try {
    said = JSON.parse(content);
  } catch {
    /* a proxy's page */
  }
  if (answer.status === 401 && session.name && !isSession) {
    // A session may have ended. It has not where a named user is refused by 401, as by a function of a design document.
    await whoAmI().catch(() => {});
    if (!session.name) listeners.forEach((listener) => listener());
  }
  throw new Refused(
    answer.status,
    said.error ?? '',
    typeof said.reason === 'string' ? said.reason : JSON.stringify(said.reason ?? ''),
  );
}

/** The same, with the answer's JSON. */
export const json = async (...request) => JSON.parse(await text(...request));

export const get = (address, options) => json('GET', address, options);
export const put = (address, body, options) => json('PUT', address, { body, ...options });
export const post = (address, body = {}, options) => json('POST', address, { body, ...options });
export const remove = (address, options) => json('DELETE', address, options);

/**
 * Who the user is. `isOpenAdmin`: the server has no administrator, so everybody on its machine is one.
 * `needsAdministrator`: it has none, whoever this user is.
 */
export const session = {
  name: null,
  roles: [],
  isAdmin: false,
  isOpenAdmin: false,
  needsAdministrator: false,
  version: '',
};

/** Asks the server who the user is. */
export async function whoAmI() {
  const { userCtx, needs_administrator: needs } = await get(url('_session')).catch((error) => {
    if (error.status !== 401) throw error;
    // chttpd/require_valid_user: nobody is told even this.
    return { userCtx: { name: null, roles: [] } };
  });
  const isAdmin = userCtx.roles.includes('_admin');
  Object.assign(session, {
    name: userCtx.name,
    roles: userCtx.roles,
    isAdmin,
    isOpenAdmin: isAdmin && userCtx.name === null,
    needsAdministrator: Boolean(needs),
  });
}

export async function signIn(name, password) {
  await post(url('_session'), { name, password });
  await whoAmI();
}

export async function signOut() {
  kept.forget();
  await remove(url('_session'));
  await whoAmI();
}

/**
 * What the user may do in a database, by its security object. The server decides at each request; this decides what is
 * offered.
 */
export function rightsIn(security) {
  const among = ({ names = [], roles = [] } = {}) =>
    names.includes(session.name) || roles.some((role) => session.roles.includes(role));
  return { isAdmin: session.isAdmin || among(security.admins) };
}

/** Whether one of the server's own databases exists, without a request that fails. For administrators. */
export async function exists(name) {
  return (await get(url('_all_dbs') + query({ startkey: name, endkey: name }))).length > 0;
}

/** What this browser keeps for this user until the user signs out, by a name. None of it is a secret. */
export const kept = {
  key: (name) => `couch-layer:${name}:${ROOT.pathname}:${session.name ?? ''}`,
  get(name) {
    try {
      return JSON.parse(localStorage.getItem(this.key(name)));
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(this.key(name), JSON.stringify(value));
    } catch {
      /* no storage */
    }
  },
  forget() {
    try {
      ['recent', 'backups'].forEach((name) => localStorage.removeItem(this.key(name)));
    } catch {
      /* no storage */
    }
  },
};

/** Databases that this user opened in this browser, the latest first. A list of all is only for administrators. */
export const recent = {
  all: () => kept.get('recent') ?? [],
  add(name) {
    kept.set('recent', [name, ...this.all().filter((one) => one !== name)].slice(0, 8));
  },
  drop(name) {
    kept.set(
      'recent',
      this.all().filter((one) => one !== name),
    );
  },
};
