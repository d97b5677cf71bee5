// Signing in. On a server without an administrator: naming the first one.

import { get, put, session, signIn, url } from './api.js';
import { confirmed, dialog, field, form, h, note } from './dom.js';

/** The token that the server printed, from the address that it printed. It is in this page's memory and nowhere else. */
let token = '';

/** Takes the token out of the address, so that it is neither in the history nor in what somebody copies. */
export function keepToken() {
  const [path, options] = location.hash.split('?');
  const asked = new URLSearchParams(options ?? '');
  if (path !== '#/signin' || !asked.has('token')) return;
  token = asked.get('token');
  asked.delete('token');
  const rest = asked.toString();
  history.replaceState(null, '', rest ? `${path}?${rest}` : path);
}

/** The field of a name and that of a password. */
function fields(kind) {
  const name = h('input', {
    autocomplete: 'username',
    required: true,
    autocapitalize: 'off',
    spellcheck: 'false',
    autofocus: true,
  });
  const password = h('input', { type: 'password', autocomplete: kind, required: true });
  return [name, password];
}

/** Names the first administrator, and signs in as this one. */
async function nameFirst(name, password, shown) {
  await put(url('_node', '_local', '_config', 'admins', name), JSON.stringify(password), {
    headers: { 'x-couch-layer-setup-token': shown },
  });
  token = '';
  await signIn(name, password);
}

/** Names another administrator. Asks before it replaces a password. Returns whether it was done. */
export async function nameAdministrator(name, password) {
  const known = await get(url('_node', '_local', '_config', 'admins'));
  if (
    Object.hasOwn(known, name) &&
    !(await confirmed(
      'Replace a password',
      `${name} is an administrator already. This replaces the password, and ends the sessions of ${name}.`,
      'Replace the password',
    ))
  )
    return false;
  await put(url('_node', '_local', '_config', 'admins', name), JSON.stringify(password));
  return true;
}

/** Signs in over the page, which stays as it is. Resolves to whether that was done. */
export const signInAgain = () =>
  dialog('Sign in', (close) => {
    const [name, password] = fields('current-password');
    return form(
      null,
      async () => {
        try {
          await signIn(name.value, password.value);
        } catch (error) {
          password.select();
          password.focus();
          throw error;
        }
        close(true);
      },
      h('p', null, 'Your session ended. The page below stays as it is.'),
      field('Name', name),
      field('Password', password),
      h(
        'div',
        { class: 'row end' },
        h('button', { type: 'button', onclick: () => close(false) }, 'Cancel'),
        h('button', { type: 'submit', class: 'main' }, 'Sign in'),
      ),
    );
  });

export async function page({ options, reload }) {
  const goOn = async () => {
    const to = options.get('return');
    const next = to?.startsWith('#/') && !to.startsWith('#/signin') ? to : '#/';
    if (location.hash === next) await reload();
    else location.hash = next;
  };
  if (session.needsAdministrator) {
    const [name, password] = fields('new-password');
    const shown = h('input', {
      value: token,
      required: true,
      autocomplete: 'off',
      autocapitalize: 'off',
      spellcheck: 'false',
      class: 'mono',
    });
    return h(
      'div',
      { class: 'narrow' },
      h('h1', null, 'Name an administrator'),
      note(
        'warn',
        h(
          'p',
          null,
          'This server has no administrator: everybody on its machine may read and write everything. Name one, and nobody else may any more.',
        ),
      ),
      form(
        null,
        async () => {
          // Letters of another alphabet would not be a header's.
          if (!/^[\x21-\x7e]+$/.test(shown.value.trim())) throw new Error('This is not a token of the server.');
          await nameFirst(name.value, password.value, shown.value.trim());
          await goOn();
        },
        field('Name', name),
        field('Password', password),
        field(
          'Token',
          shown,
          'The server printed it when it started: where you started it, or in what its service or container keeps of its output. It works once.',
        ),
        h('button', { type: 'submit', class: 'main' }, 'Name this administrator'),
      ),
    );
  }
  const [name, password] = fields('current-password');
  const failed = h('div');
  return h(
    'div',
    { class: 'narrow' },
    h('h1', null, 'Sign in'),
    form(
      null,
      async () => {
        failed.replaceChildren();
        try {
          await signIn(name.value, password.value);
        } catch (error) {
          failed.append(note('bad', h('p', null, error.message)));
          password.select();
          password.focus();
          return;
        }
        await goOn();
      },
      failed,
      field('Name', name),
      field('Password', password),
      h('button', { type: 'submit', class: 'main' }, 'Sign in'),
    ),
  );
}
