// Signing in. On a server without an administrator: naming the first one.

import { get, put, session, signIn, url } from './api.js';
import { confirmed, dialog, field, form, h, note } from './dom.js';

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

/**
 * Names an administrator, and signs in as this one if there was none. Asks before it replaces a password. Returns
 * whether it was done.
 */
export async function nameAdministrator(name, password) {
  const wasParty = session.isParty;
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
  if (wasParty) await signIn(name, password);
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
  if (session.isParty) {
    const [name, password] = fields('new-password');
    return h(
      'div',
      { class: 'narrow' },
      h('h1', null, 'Name an administrator'),
      note(
        'warn',
        h(
          'p',
          null,
          'This server has no administrator: everybody who can connect may read and delete everything. Name one, and nobody else may any more.',
        ),
      ),
      form(
        null,
        async () => {
          if (await nameAdministrator(name.value, password.value)) await goOn();
        },
        field('Name', name),
        field('Password', password),
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
