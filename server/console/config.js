// The configuration: CouchDB's settings, as the server reads them. Secrets are never shown.

import { get, put, remove, url } from './api.js';
import { button, dialog, field, fill, form, h, note, panel, table, toast } from './dom.js';

const path = (...parts) => url('_node', '_local', '_config', ...parts);

/** Whether a value is a secret, or made of one. */
const isSecret = (section, name, value) =>
  !['true', 'false'].includes(value) &&
  (['admins', 'jwt_keys', 'ssl'].includes(section) || /^(.*_)?(secret|password|key)$/i.test(name));

function edit(section, name, value) {
  const isNew = name === undefined;
  return dialog(isNew ? 'New setting' : `${section}/${name}`, (close) => {
    const text = (props) => h('input', { spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...props });
    const [of, key] = [text({ required: true, value: section ?? '', autofocus: isNew }), text({ required: true })];
    const area =
      isNew || !isSecret(section, name, value)
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
        isNew ? null : isSecret(section, name, value) ? 'What it is now is not shown.' : `Now: ${value || 'nothing'}`,
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
      .filter(([section]) => section !== 'admins')
      .map(([section, values]) => [
        section,
        Object.entries(values).filter(([name]) => `${section}/${name}`.toLowerCase().includes(wanted)),
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
            ['Name', 'Value', ''],
            values.map(([name, value]) => [
              h('code', null, name),
              isSecret(section, name, value) ? h('i', null, 'not shown') : h('span', { class: 'wrap' }, value),
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
              ),
            ]),
          ),
        ),
      ),
    );
  };
  const load = async () => {
    all = await get(path(), { signal });
    draw();
  };
  filter.addEventListener('input', draw);
  await load();
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Configuration'),
      button('New setting', async () => {
        if (await edit()) await load();
      }),
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
