// The settings that the server reads: the default of each, and what it means. A test compares the defaults with the
// server's. An empty default: the setting is not set.

/** Settings of authentication, which either of two sections may have. */
const AUTH = {
  allow_persistent_cookies: ['true', 'false: a session ends with the browser.'],
  cookie_domain: ['', 'The domain of the cookie.'],
  hash_algorithms: ['sha256, sha', 'Hashes that sign sessions. The first signs, all count.'],
  iterations: ['600000', 'Iterations of new passwords.'],
  max_iterations: ['2000000', 'A stored password with more is refused.'],
  min_iterations: ['1', 'A stored password with fewer is refused.'],
  password_regexp: ['', 'Expressions that new passwords must match.'],
  password_scheme: ['pbkdf2', 'How new passwords are stored: pbkdf2 or simple.'],
  pbkdf2_prf: ['sha256', 'The hash of pbkdf2.'],
  public_fields: ['', 'Members of users’ documents that other users see.'],
  same_site: ['', 'The attribute SameSite of the cookie.'],
  timeout: ['600', 'How long a session lasts, in seconds.'],
};

/** Of each section its settings: `{ name: [default, meaning] }`. A name that ends with a colon is a beginning. */
export const SETTINGS = {
  chttpd: {
    'WWW-Authenticate': ['', 'The challenge of an answer 401.'],
    admin_only_all_dbs: ['true', 'false: everybody may list all databases.'],
    authentication_handlers: [
      '{chttpd_auth, cookie_authentication_handler}, {chttpd_auth, default_authentication_handler}',
      'Which proofs count beside cookies and passwords: jwt_authentication_handler for tokens, proxy_authentication_handler for a proxy’s headers.',
    ],
    decode_plus_to_space: ['true', 'false: + in the path of an address is a plus sign.'],
    enable_cors: ['false', 'true: pages of other origins may use the server, as the section cors says.'],
    max_db_number_for_dbs_info_req: ['100', 'The most databases in one POST to _dbs_info.'],
    max_http_request_size: ['', 'The largest request, in bytes.'],
    peer_header: [
      '',
      'The header in which a proxy sends the client’s address. Only if every request comes through the proxy.',
    ],
    require_valid_user: ['false', 'true: only who is signed in is answered.'],
    require_valid_user_except_for_up: ['false', 'The same, except for /_up.'],
    x_forwarded_host: ['X-Forwarded-Host', 'The header in which a proxy sends the host that the client uses.'],
    x_forwarded_proto: ['X-Forwarded-Proto', 'The header in which a proxy says http or https.'],
    x_forwarded_ssl: ['X-Forwarded-Ssl', 'The header in which a proxy says on for https.'],
  },
  chttpd_auth: {
    proxy_use_secret: ['true', 'false: whoever can connect may name anybody, if a proxy’s headers count.'],
    require_valid_user: ['false', 'As in the section chttpd.'],
    secret: ['', 'Signs sessions. Without it the store’s own secret does.'],
    upgrade_hash_on_auth: ['true', 'true: a password that is stored in an older way is stored anew at its next login.'],
    x_auth_roles: ['X-Auth-CouchDB-Roles', 'The header in which a proxy sends roles.'],
    x_auth_token: ['X-Auth-CouchDB-Token', 'The header in which a proxy signs the name.'],
    x_auth_username: ['X-Auth-CouchDB-UserName', 'The header in which a proxy sends the name.'],
    ...AUTH,
  },
  couch_httpd_auth: {
    ...AUTH,
  },
  chttpd_auth_lockout: {
    max_lifetime: ['300000', 'How long a lockout lasts, in milliseconds.'],
    mode: ['enforce', 'After failed logins: enforce refuses more, warn writes to the log, off does nothing.'],
    threshold: ['5', 'Number of failed logins before a lockout.'],
  },
  cors: {
    credentials: ['false', 'true: pages of these origins may send cookies and passwords.'],
    exposed_headers: [
      'accept-ranges, etag, location, server, x-couch-request-id, x-couch-update-newrev, x-couchdb-body-time',
      'Headers that these pages may read.',
    ],
    headers: [
      'accept, accept-language, authorization, content-encoding, content-length, content-range, content-type, destination, expires, if-match, if-none-match, last-event-id, last-modified, origin, pragma, x-couch-full-commit, x-couch-id, x-couch-persist, x-couch-request-id, x-couchdb-vhost-path, x-couchdb-www-authenticate, x-http-method-override, x-requested-with',
      'Headers that these pages may send.',
    ],
    max_age: ['600', 'How long a browser remembers what it may, in seconds.'],
    methods: ['GET, HEAD, POST, PUT, DELETE, COPY, PATCH, OPTIONS', 'Methods that these pages may use.'],
    origins: ['', 'Origins of pages that may use the server, separated by commas; * for all.'],
  },
  couch_peruser: {
    database_prefix: ['userdb-', 'The beginning of the names of users’ databases.'],
    delete_dbs: ['false', 'true: the databases of deleted users are dropped.'],
    enable: ['false', 'true: each user has a database.'],
    quota: ['', 'The quota of each of these databases, in bytes.'],
  },
  couch_auto_purge_plugin: {
    deleted_document_ttl: ['', 'How long tombstones are kept, for example 3_mon.'],
    dry_run: ['false', 'true: old tombstones are counted in the log, and stay.'],
    repeat: ['1_day', 'The pause between two rounds.'],
  },
  couch_scanner_plugins: {
    couch_auto_purge_plugin: ['false', 'true: old tombstones are purged.'],
  },
  couchdb: {
    default_security: ['admin_only', 'everyone: new databases are open to everybody.'],
    max_attachment_size: ['infinity', 'The largest attachment, in bytes.'],
    max_bulk_docs_count: ['10000', 'The most documents in one _bulk_docs.'],
    max_bulk_get_count: ['10000', 'The most documents in one _bulk_get.'],
    max_document_size: ['8000000', 'The largest document as JSON, in bytes; at most 8000000.'],
    users_db_security_editable: ['false', 'true: who may use _users can be changed.'],
  },
  csp: {
    attachments_enable: [
      'true',
      'false: attachments are not in a sandbox. What users store could then act as its reader.',
    ],
    attachments_header_value: ['sandbox', 'The policy of attachments.'],
    showlist_enable: ['true', 'false: answers of update functions are not in a sandbox.'],
    showlist_header_value: ['sandbox', 'The policy of these answers.'],
    utils_enable: ['true', 'false: a console from a folder has no policy.'],
    utils_header_value: [
      "child-src 'self' data: blob:; default-src 'self'; img-src 'self' data:; font-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline';",
      'The policy of a console from a folder. The console in the binary keeps its own.',
    ],
  },
  httpd: {
    'WWW-Authenticate': ['', 'As in the section chttpd.'],
    enable_cors: ['', 'As in the section chttpd.'],
  },
  jwt_auth: {
    required_claims: ['exp', 'Claims that a token must have.'],
    roles_claim_name: ['_couchdb.roles', 'The claim with the roles.'],
    roles_claim_path: ['', 'The same as a path of members.'],
  },
  jwt_keys: {
    'ec:': ['', 'Public keys of tokens by ES256, ES384 and ES512.'],
    'hmac:': ['', 'Secrets of tokens by HS256, HS384 and HS512.'],
    'rsa:': ['', 'Public keys of tokens by RS256, RS384 and RS512.'],
  },
  replicator: {
    checkpoint_interval: ['30000', 'Time between two checkpoints, in milliseconds.'],
    connection_timeout: ['120000', 'Patience with another server, in milliseconds.'],
    http_connections: ['20', 'Connections of a replication to each side.'],
    interval: ['60000', 'Time between two rounds in which waiting replications get their turn, in milliseconds.'],
    max_churn: ['20', 'The most replications that give way to others in a round.'],
    max_jobs: ['2000', 'The most replications that run at once.'],
    retries_per_request: ['', 'How often a failed request is sent again.'],
    socket_options: ['[{keepalive, true}, {nodelay, true}]', 'Options of connections to other servers.'],
    use_checkpoints: ['true', 'false: a replication begins anew after each restart.'],
    worker_batch_size: ['500', 'Number of changes that are copied at once.'],
    worker_processes: ['4', 'Number of batches at a time.'],
  },
  uuids: {
    algorithm: ['sequential', 'How ids are made: sequential, random, utc_random, utc_id or uuid_v7.'],
    max_count: ['1000', 'The most ids in one answer of _uuids.'],
    utc_id_suffix: ['', 'What utc_id adds.'],
  },
};
