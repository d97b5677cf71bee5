// The frame around all pages: which page an address means, the side bar, and who is signed in.

import { ROOT, beginPage, get, onSignedOut, recent, session, signOut, whoAmI } from './api.js';
import { at, button, closeDialogs, confirmed, fill, forgetEdits, h, hasEdits, link, note } from './dom.js';
import { page as backups } from './backups.js';
import { page as changes } from './changes.js';
import { page as config } from './config.js';
import { page as databases } from './databases.js';
import { page as document_ } from './document.js';
import { conflicts, page as documents } from './documents.js';
import { page as query } from './query.js';
import { page as replications } from './replications.js';
import { page as server } from './server.js';
import { page as settings } from './settings.js';
import { keepToken, page as signin, signInAgain } from './signin.js';
import { page as users } from './users.js';
import { page as vault } from './vault.js';
import { page as views } from './views.js';

/** A page that needs an administrator who is named: users and settings outlast the time without one. */
const ofNamed = (title, page) => (asked) =>
  session.isOpenAdmin
    ? [
        h('h1', null, title),
        note(
          'warn',
          h(
            'p',
            null,
            'This page is for an administrator, and this server has none: everybody on its machine may read and write everything else. ',
            link('#/signin', 'Name one'),
            '.',
          ),
        ),
      ]
    : page(asked);

// Of each page: its path, its title, and whether it is for server administrators alone.
const PAGES = [
  [/^$/, () => 'Databases', databases],
  [/^signin$/, () => 'Sign in', signin],
  [/^db\/([^/]+)$/, (db) => db, documents],
  [/^db\/([^/]+)\/doc\/([^/]+)$/, (db, id) => `${id} in ${db}`, document_],
  [/^db\/([^/]+)\/new$/, (db) => `New document in ${db}`, document_],
  [/^db\/([^/]+)\/changes$/, (db) => `Changes of ${db}`, changes],
  [/^db\/([^/]+)\/query$/, (db) => `Query ${db}`, query],
  [/^db\/([^/]+)\/views$/, (db) => `Views of ${db}`, views],
  [/^db\/([^/]+)\/conflicts$/, (db) => `Conflicts in ${db}`, conflicts],
  [/^db\/([^/]+)\/vault$/, (db) => `Vault ${db}`, vault],
  [/^db\/([^/]+)\/settings$/, (db) => `Settings of ${db}`, settings],
  [/^replications$/, () => 'Replications', replications, true],
  [/^backups$/, () => 'Backups', ofNamed('Backups', backups), true],
  [/^users$/, () => 'Users', ofNamed('Users', users), true],
  [/^config$/, () => 'Configuration', ofNamed('Configuration', config), true],
  [/^server$/, () => 'Server', server, true],
];

const main = document.getElementById('main');
const side = document.getElementById('side');

let leaving = new AbortController();

function frame(path) {
  const current = (to) => (path === to || (to !== '' && path.startsWith(`${to}/`)) ? 'page' : null);
  const entry = (to, text) => h('li', null, link(`#/${to}`, text, { 'aria-current': current(to) }));
  const known = recent
    .all()
    .filter((name) => !name.startsWith('_'))
    .slice(0, 5);
  fill(
    side,
    h(
      'a',
      { class: 'brand', href: '#/' },
      h('img', { src: 'icon.svg', alt: '', width: 28, height: 28 }),
      'couch-layer',
    ),
    h(
      'nav',
      { 'aria-label': 'Console' },
      h(
        'ul',
        null,
        entry('', 'Databases'),
        known.map((name) =>
          h(
            'li',
            { class: 'sub' },
            link(at('db', name), name, { 'aria-current': current(`db/${encodeURIComponent(name)}`) }),
          ),
        ),
        session.isAdmin && [
          entry('replications', 'Replications'),
          entry('backups', 'Backups'),
          entry('users', 'Users'),
          entry('config', 'Configuration'),
          entry('server', 'Server'),
        ],
      ),
    ),
    h(
      'div',
      { class: 'who' },
      h(
        'span',
        null,
        session.name
          ? ['Signed in as ', h('b', null, session.name)]
          : session.isOpenAdmin
            ? 'Everybody is an administrator'
            : 'Not signed in',
      ),
      session.name
        ? button(
            'Sign out',
            async () => {
              if (!(await mayLeave())) return;
              await signOut();
              history.pushState(null, '', '#/');
              await show();
            },
            { class: 'quiet' },
          )
        : link('#/signin', session.needsAdministrator ? 'Name an administrator' : 'Sign in'),
      h('small', null, session.version),
    ),
  );
}

function refused(error) {
  if (error.status === 401 || (error.status === 403 && !session.name)) {
    return [
      note(
        'warn',
        h('p', null, session.name ? `${session.name} may not see this. ` : 'Sign in to see this. ', error.reason ?? ''),
      ),
      h(
        'p',
        null,
        link(
          `#/signin?return=${encodeURIComponent(location.hash)}`,
          session.name ? 'Sign in as somebody else' : 'Sign in',
        ),
      ),
    ];
  }
  return [note('bad', h('p', null, error.message)), h('p', null, link('#/', 'All databases'))];
}

/** Whether the page may be left: it has no edit that is not stored, or the user gives it up. */
async function mayLeave() {
  if (
    hasEdits() &&
    !(await confirmed('Leave this page', 'Your edit is not stored, and would be lost.', 'Leave without saving'))
  )
    return false;
  forgetEdits();
  return true;
}

/** The address of the page that is shown. */
let shownHash = location.hash;

/** Goes to the page of the address, unless that would lose an edit. */
async function go() {
  const to = location.hash;
  if (to === shownHash) return;
  if (hasEdits()) {
    // The address stays that of the page until it is left.
    history.pushState(null, '', shownHash || '#/');
    if (!(await mayLeave())) return;
    history.pushState(null, '', to || '#/');
  }
  await show();
}

/** Shows the page of the address. */
async function show() {
  closeDialogs();
  forgetEdits();
  beginPage();
  keepToken();
  shownHash = location.hash;
  leaving.abort(new DOMException('the page was left', 'AbortError'));
  leaving = new AbortController();
  const { signal } = leaving;
  const path = location.hash.replace(/^#\/?/, '').replace(/\?.*$/s, '');
  const options = new URLSearchParams(location.hash.split('?')[1] ?? '');
  const found = PAGES.map(([pattern, title, page, isAdmins]) => ({
    match: pattern.exec(path),
    title,
    page,
    isAdmins,
  })).find(({ match }) => match);
  const wait = setTimeout(() => fill(main, h('p', { class: 'empty' }, 'Loading…')), 300);
  let [title, content] = ['No such page', [h('h1', null, 'No such page'), h('p', null, link('#/', 'All databases'))]];
  try {
    if (found) {
      const args = found.match.slice(1).map(decodeURIComponent);
      title = found.title(...args);
      if (found.isAdmins && !session.isAdmin) {
        content = [
          h('h1', null, title),
          note('warn', h('p', null, 'This page is for server administrators.')),
          h('p', null, link(`#/signin?return=${encodeURIComponent(location.hash)}`, 'Sign in as one')),
        ];
      } else {
        content = await found.page({ args, options, signal, reload: async () => signal.aborted || show() });
      }
    }
  } catch (error) {
    if (signal.aborted) return;
    content = [h('h1', null, title), ...refused(error)];
  } finally {
    clearTimeout(wait);
  }
  if (signal.aborted) return;
  document.title = `${title} · couch-layer`;
  fill(main, ...[content].flat());
  main.dataset.page = path;
  frame(path);
  // Whoever reads with ears or keys begins at the page, not at the side bar.
  (main.querySelector('[autofocus]') ?? main).focus({ preventScroll: true });
  scrollTo(0, 0);
}

// The page stays below the dialog, with what was typed into it. Several requests may be refused at once.
let asking = false;
onSignedOut(async () => {
  if (asking || location.hash.startsWith('#/signin')) return;
  asking = true;
  const before = shownHash;
  const isIn = await signInAgain().finally(() => {
    asking = false;
  });
  if (isIn && !hasEdits() && shownHash === before) await show();
  else frame(main.dataset.page ?? '');
});
addEventListener('hashchange', go);
addEventListener('beforeunload', (event) => {
  if (hasEdits()) event.preventDefault();
});
addEventListener('unhandledrejection', (event) => {
  if (event.reason?.name === 'AbortError') event.preventDefault();
});

// Before the first request: it may fail, and the token would stay in the address.
keepToken();
try {
  await whoAmI();
  const { version, vendor } = await get(ROOT.href);
  session.version = `${vendor?.name ?? 'CouchDB'} ${vendor?.version ?? version}`;
  await show();
} catch (error) {
  fill(
    main,
    h('h1', null, 'couch-layer'),
    note('bad', h('p', null, error.message)),
    button('Try again', () => location.reload()),
  );
}
