// Users, their roles and passwords; and the server's administrators.

import { exists, get, put, query, remove, session, text, url } from './api.js';
import { button, confirmed, dialog, field, form, h, link, note, panel, table, toast } from './dom.js';
import { rowsOf } from './documents.js';
import { members, object } from './json.js';
import { lines } from './settings.js';
import { nameAdministrator } from './signin.js';

const DATABASE = '_users';
const PREFIX = 'org.couchdb.user:';
const MOST = 500;

const input = (props) => h('input', { spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...props });
const secret = (props) => h('input', { type: 'password', autocomplete: 'new-password', ...props });
const ends = (close, verb) =>
  h(
    'div',
    { class: 'row end' },
    h('button', { type: 'button', onclick: () => close() }, 'Cancel'),
    h('button', { type: 'submit', class: 'main' }, verb),
  );

const create = () =>
  dialog('New user', (close) => {
    const [name, password, roles] = [
      input({ required: true, autofocus: true, pattern: '[^:]+', title: 'without a colon' }),
      secret({ required: true }),
      lines('[]'),
    ];
    return form(
      null,
      async () => {
        if (!(await exists(DATABASE))) await put(url(DATABASE));
        await put(url(DATABASE, PREFIX + name.value), {
          name: name.value,
          password: password.value,
          roles: JSON.parse(roles.read()),
          type: 'user',
        });
        close(true);
      },
      field('Name', name),
      field('Password', password),
      field('Roles', roles.area, 'One a line'),
      ends(close, 'Create'),
    );
  });

const change = (user) =>
  dialog(`Change ${user.name}`, (close) => {
    const roles = lines(user.fields.get('roles') ?? '[]', { autofocus: true });
    const password = secret();
    return form(
      null,
      async () => {
        // Its other members stay as they are, by their texts.
        const next = new Map(user.fields).set('roles', roles.read());
        if (password.value) next.set('password', JSON.stringify(password.value));
        await put(url(DATABASE, user._id), object(next));
        toast('Stored.');
        close(true);
      },
      field('Roles', roles.area, 'One a line'),
      field('New password', password, 'Empty: it stays.'),
      ends(close, 'Save'),
    );
  });

const administrator = () =>
  dialog('Name an administrator', (close) => {
    const [name, password] = [input({ required: true, autofocus: true }), secret({ required: true })];
    return form(
      null,
      async () => {
        if (await nameAdministrator(name.value, password.value)) close(true);
      },
      h('p', null, 'An administrator may do everything on this server.'),
      field('Name', name),
      field('Password', password),
      ends(close, 'Name this administrator'),
    );
  });

export async function page({ signal, reload }) {
  const [there, admins] = await Promise.all([
    exists(DATABASE),
    get(url('_node', '_local', '_config', 'admins'), { signal }),
  ]);
  const asked = query({ include_docs: true, startkey: PREFIX, endkey: `${PREFIX}\ufff0`, limit: MOST });
  const rows = there ? rowsOf(await text('GET', url(DATABASE, '_all_docs') + asked, { signal })) : [];
  const users = rows
    .map((row) => members(row).get('doc') ?? 'null')
    .filter((doc) => doc !== 'null')
    .map((doc) => ({ ...JSON.parse(doc), fields: members(doc) }))
    .filter(({ name }) => typeof name === 'string' && name);
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Users'),
      button(
        'New user',
        async () => {
          if (await create()) await reload();
        },
        { class: 'main' },
      ),
    ),
    session.isParty &&
      note(
        'warn',
        h(
          'p',
          null,
          'This server has no administrator: everybody on its machine may read and write everything. ',
          link('#/signin', 'Name one'),
          '.',
        ),
      ),
    panel(
      'Users',
      table(
        'Users',
        ['Name', 'Roles', ''],
        users.map((user) => [
          user.name,
          [user.roles].flat().filter(Boolean).join(', '),
          h(
            'div',
            { class: 'row tight' },
            button(
              'Change',
              async () => {
                if (await change(user)) await reload();
              },
              { class: 'small', 'aria-label': `Change ${user.name}` },
            ),
            button(
              'Delete',
              async () => {
                if (
                  !(await confirmed(
                    'Delete a user',
                    `${user.name} cannot sign in any more. Documents of this user stay.`,
                    'Delete',
                  ))
                )
                  return;
                await remove(url(DATABASE, user._id) + query({ rev: user._rev }));
                await reload();
              },
              { class: 'small', 'aria-label': `Delete ${user.name}` },
            ),
          ),
        ]),
        'There are no users yet.',
      ),
      rows.length === MOST && h('p', { class: 'hint' }, `The first ${MOST} users.`),
    ),
    panel(
      'Administrators of the server',
      table(
        'Administrators',
        ['Name', ''],
        Object.keys(admins).map((name) => [
          name,
          name !== session.name &&
            button(
              'Remove',
              async () => {
                if (!(await confirmed('Remove an administrator', `${name} is no administrator any more.`, 'Remove')))
                  return;
                await remove(url('_node', '_local', '_config', 'admins', name));
                await reload();
              },
              { class: 'small', 'aria-label': `Remove ${name}` },
            ),
        ]),
        'There is none: everybody is one.',
      ),
      h(
        'div',
        { class: 'row end' },
        session.isParty
          ? link('#/signin', 'Name an administrator', { class: 'button' })
          : button('Name an administrator', async () => {
              if (await administrator()) await reload();
            }),
      ),
    ),
  ];
}
