// Runs every command of the documentation, except for those of `NOT_RUN`, and every sample.

import assert from 'node:assert/strict';
import { mkdir, readFile, readdir, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';

import { Session, blocks, execute, pattern } from '../lib/pages.mjs';
import { E2E, ROOT, Server, run, temporaryFolder } from '../lib/server.mjs';

const DOCS = (await readdir(path.join(ROOT, 'docs'))).filter((name) => name.endsWith('.md')).map((name) => `docs/${name}`);
// `docs/introduction.md` and `docs/security.md` are these.
const PAGES = ['README.md', 'SECURITY.md', 'couch-layer/README.md']
  .concat(DOCS.filter((page) => !/(SUMMARY|introduction|security)\.md$/.test(page)));
const TEXTS = new Map(await Promise.all(PAGES.map(async (page) => [page, await readFile(path.join(ROOT, page), 'utf8')])));

/** Blocks of commands that are not run here: a line of each, and why. A page alone stands for all of its blocks. */
const BUILDS = 'builds from source, as the other steps of `.ci/run` do';
const VAULT = 'needs a vault that devices use; `server/tests/chunks.rs` and `server/tests/http/vaults.rs` collect one';
const NOT_RUN = [
  ['README.md', 'cargo run -- serve', BUILDS],
  ['docs/start.md', 'git clone', `fetches the repository, and ${BUILDS}`],
  ['docs/operating.md', 'systemctl enable', 'needs systemd, and writes into the system; `.ci/run debian` installs the package'],
  ['docs/operating.md', 'systemd-sysusers', 'writes into the system'],
  ['docs/operating.md', '--acme-email', 'needs a name that leads here, and an ACME server; `server/tests/acme.rs` has one'],
  ['docs/operating.md', '--features otlp', `needs a collector, and ${BUILDS}`],
  ['docs/operating.md', 'podman build', `needs a container engine, and ${BUILDS}`],
  ['docs/backup.md', '--ship-to /mnt', 'needs a disk at /mnt, times of a store that was shipped, and a second server'],
  ['docs/console.md', 'X-Couch-Layer-Setup-Token', 'needs the token of a start; `server/tests/http/setup.rs` sends it'],
  ['docs/vault.md', '# once a week, say', VAULT],
  ['docs/vault.md', '--every 1d', VAULT],
  ['docs/foundationdb.md', null, 'needs a cluster; `.github/workflows/foundationdb.yml` runs its tests on one'],
];

/** Pages for people who work on this project. Their commands are those of `.ci/run` and `.ci/nightly`, or take hours. */
const FOR_BUILDERS = ['benchmarks', 'conformance', 'costs', 'design', 'fdb-semantics', 'glossary', 'keyspace', 'new-engine', 'rfcs']
  .map((name) => `docs/${name}.md`);

/** What a page finds: `hosts` are the addresses on this machine for its names. */
const SETUP = {
  'docs/from-couchdb.md': async (t) => {
    const env = { COUCHDB_USER: 'admin', COUCHDB_PASSWORD: 'secret' };
    const old = (await Server.start('mem:', { env })).endWith(t);
    const put = (name, body) => fetch(`${old.url}/${name}`, {
      method: 'PUT', body, headers: { authorization: `Basic ${btoa('admin:secret')}` },
    });
    for (const name of ['notes', 'tasks', '_replicator']) assert.equal((await put(name)).status, 201);
    assert.equal((await put('notes/song', '{"title":"Gute Nacht"}')).status, 201);
    return { 'old:5984': `127.0.0.1:${old.port}` };
  },
};

function whyNotRun(page, text) {
  if (FOR_BUILDERS.includes(page)) return 'for people who work on this project';
  return NOT_RUN.find(([of, line]) => of === page && (line === null || text.includes(line)))?.[2];
}

/** Runs the blocks of a page in their order: the number of blocks. */
async function runPage(t, page, text) {
  const folder = await temporaryFolder(t);
  const session = await Session.start(folder, { hosts: await SETUP[page]?.(t) });
  await mkdir(path.join(folder, 'node'));
  await symlink(path.join(E2E, 'node_modules'), path.join(folder, 'node/node_modules'));
  let ran = 0;
  try {
    for (const block of blocks(text)) {
      if (block.language === 'sh' && !whyNotRun(page, block.text)) {
        await session.run(block.text);
        ran++;
      } else if (block.language === 'js') {
        const sample = session.here(block.text);
        await writeFile(path.join(folder, 'node/sample.mjs'), sample);
        const { code, stdout, stderr } = await execute('node', ['sample.mjs'], { cwd: path.join(folder, 'node') });
        assert.equal(code, 0, stderr);
        for (const [, expected] of sample.matchAll(/\/\/ prints (.*)$/gm)) assert.match(stdout, pattern(expected));
        ran++;
      }
    }
  } finally {
    await session.stop();
  }
  return ran;
}

for (const [page, text] of TEXTS) {
  if (!blocks(text).some((block) => block.language === 'js' || (block.language === 'sh' && !whyNotRun(page, block.text)))) continue;
  test(`the commands of ${page}`, { timeout: 300_000 }, async (t) => {
    t.diagnostic(`${await runPage(t, page, text)} blocks`);
  });
}

test('mistakes in a page are found', { timeout: 120_000 }, async (t) => {
  const page = '```sh\ncouch-layer serve --engine mem:\ncurl -s http://127.0.0.1:5984/\n# "couchdb":"Welcome"...\n```\n';
  assert.equal(await runPage(t, 'a page', page), 1);
  for (const [right, wrong, message] of [
    ['"Welcome"', '"Farewell"', /expected/],
    ['5984/\n# "couchdb":"Welcome"...', '5984/nothing', /an error of/],
    ['curl -s', 'curl --no-such-option', /exit code 2/],
    ['--engine mem:', '--engin mem:', /the server ended/],
    ['curl -s', 'couch-layer vault doctors', /exit code 2/],
  ]) await assert.rejects(runPage(t, 'a page', page.replace(right, wrong)), message);
  const sample = '```js\nconsole.log(1);\n// prints 2\n```\n';
  await assert.rejects(runPage(t, 'a page', sample));
});

test('each block names its language, so that no command is missed', () => {
  const known = ['sh', 'js', 'json', 'toml', 'yaml', 'ini', 'text', 'html', 'rust', 'rust,no_run', 'rust,ignore'];
  for (const [page, text] of TEXTS) {
    if (FOR_BUILDERS.includes(page)) continue;
    for (const { language, text: block } of blocks(text)) {
      assert.ok(known.includes(language), `${page}, a block of ${language || 'no language'}: ${block.slice(0, 60)}`);
      const first = /^(\$ )?(couch-layer|curl|cargo|npm|npx|sudo|systemctl|apt|docker|podman) /m;
      assert.ok(language !== 'text' || !first.test(block), `${page} has commands in a block of text: ${block.slice(0, 60)}`);
    }
  }
});

test('what is not run is still there', () => {
  for (const [page, line] of NOT_RUN) {
    const of = blocks(TEXTS.get(page) ?? '').filter(({ language }) => language === 'sh');
    assert.ok(of.some(({ text }) => line === null || text.includes(line)), `${page}: ${line}`);
  }
});

test('blocks of Rust are compiled', async () => {
  // A page that a crate includes as documentation is tested by `cargo test`.
  const included = {
    'docs/embedding.md': ['couch-layer/src/lib.rs', '#![doc = include_str!("../GUIDE.md")]'],
    'docs/new-engine.md': ['conformance/src/lib.rs', '#[doc = include_str!("../../docs/new-engine.md")]'],
  };
  for (const [page, text] of TEXTS) {
    const rust = blocks(text).filter(({ language }) => language.startsWith('rust'));
    if (rust.length === 0) continue;
    if (page in included) {
      const [file, line] = included[page];
      assert.ok((await readFile(path.join(ROOT, file), 'utf8')).includes(line), `${file} does not include ${page}`);
      continue;
    }
    // Other samples are the example that is compiled and tested. Line by line and in order; lines may be left out.
    let rest = (await readFile(path.join(ROOT, 'couch-layer/examples/notes.rs'), 'utf8')).split('\n').map((line) => line.trim());
    for (const line of rust.flatMap(({ text: sample }) => sample.split('\n')).map((one) => one.trim()).filter(Boolean)) {
      assert.ok(rest.includes(line), `${page}: couch-layer/examples/notes.rs does not have: ${line}`);
      rest = rest.slice(rest.indexOf(line) + 1);
    }
  }
});

test('the page of commands has each command, and no other', async () => {
  const { stdout } = await run(['--help']);
  const [, list] = stdout.match(/^Commands:\n([\s\S]*?)\n\n/m);
  const known = [...list.matchAll(/^ {2}(\S+)/gm)].map(([, name]) => name).filter((name) => name !== 'help');
  const page = TEXTS.get('docs/commands.md');
  for (const name of known) assert.match(page, new RegExp(`\`(couch-layer )?${name}[\` ]`), name);
  for (const [, name] of page.matchAll(/^\| `([a-z]+)[` ]/gm)) assert.ok(known.includes(name), name);
});
