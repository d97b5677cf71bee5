// The configuration: CouchDB's settings that the server reads. Only values that hold no secret are shown.

import { get, put, remove, session, url } from './api.js';
import { button, dialog, field, fill, form, h, link, note, panel, short, table, toast } from './dom.js';
import { SETTINGS } from './meanings.js';

const path = (...parts) => url('_node', '_local', '_config', ...parts);

/** The sections that are asked for. `admins` is not among them: its values are made of passwords. */
const SECTIONS = Object.keys(SETTINGS);

/** The most letters of a default that are shown. */
const MOST_DEFAULT = 60;

/** Settings that are secrets. */
const SECRETS = new Set(['chttpd_auth/secret']);

/** What is known about a setting: `[default, meaning]`. */
function known(section, name) {
  const all = SETTINGS[section] ?? {};
  if (Object.hasOwn(all, name)) return all[name];
  return all[`${name.split(':')[0]}:`] ?? null;
}

/** Whether a value may be a secret: only those are shown that the server knows and that hold none. */
const isSecret = (section, name) =>
  !Object.hasOwn(SETTINGS[section] ?? {}, name) || SECRETS.has(`${section}/${name}`) || name.includes(':');

/** What a setting means, and its default where it has another value. */
function meaning(section, name, value) {
  const about = known(section, name);
  if (!about) return 'The server does not read it.';
  const [usual, said] = about;
  return usual === value || isSecret(section, name)
    ? said
    : `${said} Default: ${short(usual, MOST_DEFAULT) || 'nothing'}.`;
}

function edit(section, name, value) {
  const isNew = name === undefined;
  return dialog(isNew ? 'New setting' : `${section}/${name}`, (close) => {
    const text = (props) => h('input', { spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...props });
    const [of, key] = [text({ required: true, value: section ?? '', autofocus: isNew }), text({ required: true })];
    const area =
      isNew || !isSecret(section, name)
        ? text({ value: value ?? '', autofocus: !isNew })
        : text({ type: 'password', autocomplete: 'new-password', autofocus: true });
    return form(
      null,
      async () => {
        await put(path(isNew ? of.value : section, isNew ? key.value : name), JSON.stringify(area.value));
        toast('Stored. It counts at once.');
        close(true);
      },
      isNew && [field('Section', of), field('Name', key)],
      field(
        'Value',
        area,
        isNew
          ? null
          : [
              known(section, name)?.[1],
              isSecret(section, name) ? 'What it is now is not shown.' : `Now: ${value || 'nothing'}`,
            ]
              .filter(Boolean)
              .join(' '),
      ),
      h(
        'div',
        { class: 'row end' },
        h('button', { type: 'button', onclick: () => close() }, 'Cancel'),
        h('button', { type: 'submit', class: 'main' }, 'Save'),
      ),
    );
  });
}

/** The policy of failures: a default cannot be removed, which the server says. */
const reset = async (section, name) => {
  try {
    await remove(path(section, name));
    toast('Removed: the default counts.');
  } catch (error) {
    if (error.status !== 404) throw error;
    toast('It has its default already.');
  }
};

export async function page({ signal }) {
  const found = h('div', { class: 'stack config' });
  const filter = h('input', {
    type: 'search',
    placeholder: 'Find a setting',
    'aria-label': 'Find a setting',
    spellcheck: 'false',
    autocapitalize: 'off',
  });
  let all = {};
  const draw = () => {
    const wanted = filter.value.trim().toLowerCase();
    const sections = Object.entries(all)
      .map(([section, values]) => [
        section,
        Object.entries(values).filter(([name]) =>
          `${section}/${name} ${known(section, name)?.[1] ?? ''}`.toLowerCase().includes(wanted),
        ),
      ])
      .filter(([, values]) => values.length);
    fill(
      found,
      sections.length === 0 && h('p', { class: 'empty' }, 'No setting has such a name.'),
      sections.map(([section, values]) =>
        panel(
          section,
          table(
            section,
            ['Name', 'Value', ...(session.isParty ? [] : [''])],
            values.map(([name, value]) => [
              [h('code', null, name), h('p', { class: 'hint' }, meaning(section, name, value))],
              isSecret(section, name) ? h('i', null, 'not shown') : h('span', { class: 'wrap' }, value),
              ...(session.isParty ? [] : [buttons(section, name, value)]),
            ]),
          ),
        ),
      ),
    );
  };
  const buttons = (section, name, value) =>
    h(
      'div',
      { class: 'row tight' },
      button(
        'Change',
        async () => {
          if (await edit(section, name, value)) await load();
        },
        { class: 'small', 'aria-label': `Change ${section}/${name}` },
      ),
      button(
        'Reset',
        async () => {
          await reset(section, name);
          await load();
        },
        { class: 'small', 'aria-label': `Reset ${section}/${name}` },
      ),
    );
  const load = async () => {
    const asked = SECTIONS.map(async (section) => [section, await get(path(section), { signal })]);
    // Also those that are not set: somebody may look for what can be.
    const unset = (section, values) =>
      Object.keys(SETTINGS[section])
        .filter((name) => !name.endsWith(':') && !Object.hasOwn(values, name) && section !== 'couch_httpd_auth')
        .map((name) => [name, '']);
    all = Object.fromEntries(
      (await Promise.all(asked)).map(([section, values]) => [
        section,
        Object.fromEntries([...Object.entries(values), ...unset(section, values)].sort()),
      ]),
    );
    draw();
  };
  filter.addEventListener('input', draw);
  await load();
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Configuration'),
      !session.isParty &&
        button('New setting', async () => {
          if (await edit()) await load();
        }),
    ),
    session.isParty &&
      note(
        'warn',
        h(
          'p',
          null,
          'Only an administrator changes settings, and this server has none. ',
          link('#/signin', 'Name one'),
          '.',
        ),
      ),
    note(
      '',
      h(
        'p',
        null,
        'These settings are in the store and count on every server of it. What a server is started with is not here: its options, and the file that --config names.',
      ),
    ),
    filter,
    found,
  ];
}
