// The configuration: CouchDB's settings that the server reads. Only values that hold no secret are shown.

import { get, put, remove, url } from './api.js';
import { button, dialog, field, fill, form, h, note, panel, table, toast } from './dom.js';

const path = (...parts) => url('_node', '_local', '_config', ...parts);

const AUTH =
  'allow_persistent_cookies cookie_domain hash_algorithms iterations max_iterations min_iterations password_regexp ' +
  'password_scheme pbkdf2_prf public_fields same_site timeout';

/**
 * The sections that are asked for, and the names whose values are shown: those that the server knows and that hold no
 * secret. `admins` is not among them: its values are made of passwords.
 */
const SECTIONS = Object.fromEntries(
  Object.entries({
    chttpd:
      'WWW-Authenticate admin_only_all_dbs authentication_handlers decode_plus_to_space enable_cors ' +
      'max_db_number_for_dbs_info_req max_http_request_size peer_header require_valid_user ' +
      'require_valid_user_except_for_up x_forwarded_host x_forwarded_proto x_forwarded_ssl',
    chttpd_auth: `proxy_use_secret require_valid_user upgrade_hash_on_auth x_auth_roles x_auth_token x_auth_username ${AUTH}`,
    chttpd_auth_lockout: 'max_lifetime mode threshold',
    cors: 'credentials exposed_headers headers max_age methods origins',
    couch_auto_purge_plugin: 'deleted_document_ttl dry_run repeat',
    couch_httpd_auth: AUTH,
    couch_peruser: 'database_prefix delete_dbs enable quota',
    couch_scanner_plugins: 'couch_auto_purge_plugin',
    couchdb:
      'default_security max_attachment_size max_bulk_docs_count max_bulk_get_count max_document_size ' +
      'users_db_security_editable',
    csp:
      'attachments_enable attachments_header_value showlist_enable showlist_header_value utils_enable ' +
      'utils_header_value',
    httpd: 'WWW-Authenticate enable_cors',
    jwt_auth: 'required_claims roles_claim_name roles_claim_path',
    jwt_keys: '',
    replicator:
      'checkpoint_interval connection_timeout http_connections interval max_churn max_jobs retries_per_request ' +
      'socket_options use_checkpoints worker_batch_size worker_processes',
    uuids: 'algorithm max_count utc_id_suffix',
  }).map(([section, names]) => [section, new Set(names.split(' '))]),
);

/** Whether a value may be a secret. */
const isSecret = (section, name) => !SECTIONS[section]?.has(name);

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
        isNew ? null : isSecret(section, name) ? 'What it is now is not shown.' : `Now: ${value || 'nothing'}`,
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
              isSecret(section, name) ? h('i', null, 'not shown') : h('span', { class: 'wrap' }, value),
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
    const asked = Object.keys(SECTIONS).map(async (section) => [section, await get(path(section), { signal })]);
    all = Object.fromEntries(await Promise.all(asked));
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
