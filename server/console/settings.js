// The settings of a database: who may use it, its limits, its space, and dropping it.

import { get, post, put, recent, remove, session, text, url } from './api.js';
import { button, confirmed, count, editor, facts, field, form, h, note, panel, size, svg, toast } from './dom.js';
import { open } from './documents.js';
import { pretty } from './json.js';

/** What takes the space, as bars. */
function space({ file, active, external }) {
  const most = Math.max(file ?? 0, active, external, 1);
  const row = (name, bytes, hint) =>
    bytes !== undefined &&
    bytes !== null &&
    h(
      'div',
      { class: 'space' },
      h('span', null, name),
      svg(
        'svg',
        { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        svg('rect', { width: 100, height: 6, class: 'rest' }),
        svg('rect', { width: (bytes / most) * 100, height: 6, class: 'part' }),
      ),
      h('b', null, size(bytes)),
      h('small', null, hint),
    );
  return [
    row('On disk', file, 'with what was replaced and is not given back yet'),
    row('In use', active, 'documents, attachments and indexes'),
    row('As JSON', external, 'what the documents would take as text'),
  ];
}

const list = (text_) =>
  text_
    .split(/[,\n]/)
    .map((one) => one.trim())
    .filter(Boolean);

/** Who may use the database. Members of the object that this form does not know stay. */
function security(db, object, isAdmin) {
  const part = (kind, of) =>
    h('input', {
      value: (object[kind]?.[of] ?? []).join(', '),
      spellcheck: 'false',
      autocapitalize: 'off',
      autocomplete: 'off',
      readonly: !isAdmin,
    });
  const inputs = {
    admins: { names: part('admins', 'names'), roles: part('admins', 'roles') },
    members: { names: part('members', 'names'), roles: part('members', 'roles') },
  };
  const isOpen = ['names', 'roles'].every((of) => !object.members?.[of]?.length);
  const set = (kind, title, hint) =>
    h(
      'fieldset',
      null,
      h('legend', null, title),
      h('p', { class: 'hint' }, hint),
      h('div', { class: 'grid' }, field('Names', inputs[kind].names), field('Roles', inputs[kind].roles)),
    );
  return panel(
    'Who may use it',
    isOpen && note('warn', h('p', null, 'No member is named, so everybody may read and write.')),
    form(
      null,
      async () => {
        const next = structuredClone(object);
        for (const kind of ['admins', 'members'])
          next[kind] = { ...next[kind], names: list(inputs[kind].names.value), roles: list(inputs[kind].roles.value) };
        await put(url(db, '_security'), next);
        toast('Stored.');
      },
      set('members', 'Members', 'They read and write documents. Nobody here: everybody does.'),
      set('admins', 'Administrators of the database', 'They also write design documents and change these settings.'),
      isAdmin && h('div', { class: 'row end' }, h('button', { type: 'submit', class: 'main' }, 'Save')),
    ),
  );
}

/** A setting of one value: read now, and stored by the form. */
function setting(title, hint, input, isAllowed, store) {
  input.disabled = !isAllowed;
  return form(
    { class: 'setting' },
    async () => {
      await store(input.value);
      toast('Stored.');
    },
    field(title, input, hint),
    isAllowed && h('button', { type: 'submit', 'aria-label': `Save: ${title}` }, 'Save'),
  );
}

function upkeep(db) {
  const found = h('div', { 'aria-live': 'polite' });
  return panel(
    'Upkeep',
    h('p', { class: 'hint' }, 'The server gives space back by itself. These ask for it at once.'),
    h(
      'div',
      { class: 'row' },
      button('Compact', async () => {
        await post(url(db, '_compact'));
        toast('The server compacts the database.');
      }),
      button('Clean up views', async () => {
        await post(url(db, '_view_cleanup'));
        toast('Rows of views that are gone are removed.');
      }),
      button('Check', async () => {
        found.replaceChildren(
          h(
            'pre',
            { class: 'code', tabindex: '0', role: 'region', 'aria-label': 'Result of the check' },
            pretty(await text('GET', url(db, '_couch_layer', 'check'))),
          ),
        );
      }),
    ),
    found,
  );
}

function purging(db, infosLimit, autoPurge) {
  const ttl = h('input', {
    value: autoPurge.deleted_document_ttl ?? '',
    placeholder: '30_day',
    spellcheck: 'false',
    autocapitalize: 'off',
  });
  const days = h('input', { type: 'number', min: 1, value: infosLimit });
  const doomed = editor('{\n  "id": ["1-0123456789abcdef0123456789abcdef"]\n}', {
    label: 'Leaves to purge, as JSON',
    rows: 4,
  });
  return panel(
    'Purging',
    h(
      'p',
      { class: 'hint' },
      'A purge removes leaves without a trace, also in replications: another copy that still has them may bring them back.',
    ),
    setting(
      'Tombstones are kept for',
      'For example 30_day. The server purges older ones if couch_auto_purge_plugin is on in the configuration. Empty: they are kept.',
      ttl,
      true,
      (value) => put(url(db, '_auto_purge'), value ? { deleted_document_ttl: value } : {}),
    ),
    setting('Purges that are remembered', 'Replications and views need them.', days, true, (value) =>
      put(url(db, '_purged_infos_limit'), Number(value)),
    ),
    h(
      'details',
      null,
      h('summary', null, 'Purge leaves'),
      doomed,
      h(
        'div',
        { class: 'row end' },
        button(
          'Purge',
          async () => {
            const asked = JSON.parse(doomed.value);
            if (
              !(await confirmed(
                'Purge leaves',
                `${count(Object.keys(asked).length)} documents lose these leaves. Nothing brings them back.`,
                'Purge',
                db,
              ))
            )
              return;
            const { purged } = await post(url(db, '_purge'), asked);
            toast(`Purged: ${Object.values(purged).flat().length} leaves.`);
          },
          { class: 'danger' },
        ),
      ),
    ),
  );
}

export async function page({ args: [db], signal }) {
  const { info, security: object, rights, head } = await open(db, 'settings', signal);
  const [limit, replaced, infosLimit, autoPurge] = await Promise.all([
    get(url(db, '_revs_limit'), { signal }),
    get(url(db, '_keep_replaced'), { signal }),
    session.isAdmin && get(url(db, '_purged_infos_limit'), { signal }),
    session.isAdmin && get(url(db, '_auto_purge'), { signal }),
  ]);
  const drop = button(
    'Drop this database',
    async () => {
      if (
        !(await confirmed(
          'Drop a database',
          `${db} and its ${count(info.doc_count)} documents are deleted. Only a backup brings them back.`,
          'Drop it',
          db,
        ))
      )
        return;
      await remove(url(db));
      recent.drop(db);
      toast(`${db} is dropped.`);
      location.hash = '#/';
    },
    { class: 'danger' },
  );
  return [
    ...head,
    panel(
      'Space',
      ...space(info.sizes),
      facts(
        ['Documents', count(info.doc_count)],
        ['Deleted', count(info.doc_del_count)],
        ['Update sequence', h('code', null, String(info.update_seq).slice(0, 40))],
        info.props?.partitioned && ['Partitioned', 'yes'],
      ),
    ),
    security(db, object, rights.isAdmin),
    panel(
      'Limits',
      setting(
        'Revisions of a document that are remembered',
        'Older ones are forgotten: a copy that was away for longer makes a conflict.',
        h('input', { type: 'number', min: 1, value: limit }),
        rights.isAdmin,
        (value) => put(url(db, '_revs_limit'), Number(value)),
      ),
      setting(
        'Bodies of replaced revisions that are kept',
        'A number of revisions, or a time such as 30d. 0: a body goes with the edit that replaces it.',
        h('input', { value: replaced, autocomplete: 'off' }),
        rights.isAdmin,
        (value) => put(url(db, '_keep_replaced'), /^\d+$/.test(value) ? Number(value) : JSON.stringify(value)),
      ),
    ),
    rights.isAdmin && upkeep(db),
    session.isAdmin && purging(db, infosLimit, autoPurge),
    session.isAdmin && panel('Drop', h('p', null, 'All documents, attachments and indexes are deleted.'), drop),
  ];
}
