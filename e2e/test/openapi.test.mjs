// The description at `/_openapi.json` beside what the server does: schemathesis sends random requests that follow it, and
// others that do not.
//
// `SEED=7 OPENAPI_SECONDS=900 node --test test/openapi.test.mjs` searches longer.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';

import { store } from '../lib/engines.mjs';
import { E2E, Server, skipLoudly, temporaryFolder } from '../lib/server.mjs';

const exec = promisify(execFile);

const SEED = process.env.SEED ?? String(Math.floor(Math.random() * 2 ** 31));
const SECONDS = Number(process.env.OPENAPI_SECONDS ?? 60);

const ADMIN = { COUCHDB_USER: 'adm', COUCHDB_PASSWORD: 'password' };

test('answers are those of the description', { timeout: (SECONDS + 600) * 1000 }, async (t) => {
  t.diagnostic(`SEED=${SEED}`);
  const folder = await temporaryFolder(t);
  const environment = path.join(folder, 'python');
  try {
    await exec('python3', ['-m', 'venv', environment]);
    await exec(path.join(environment, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', 'schemathesis==4.32.5']);
  } catch (error) {
    return skipLoudly(t, `schemathesis cannot be installed: ${String(error.stderr ?? error).trim().split('\n').at(-1)}`);
  }
  const server = (await Server.start(await store(t, 'mem'), { env: ADMIN })).endWith(t);
  const statuses = path.join(folder, 'statuses.json');
  const found = await exec(path.join(environment, 'bin/schemathesis'), [
    'run', `${server.url}/_openapi.json`, '--url', server.url, '--auth', 'adm:password',
    '--checks', 'no_fault,status_code_conformance,content_type_conformance,response_schema_conformance',
    // Of each operation the edges of each parameter, and then random requests until the time is over.
    '--phases', 'coverage,fuzzing', '--max-time', String(SECONDS), '--seed', SEED, '--request-timeout', '120',
    '--continue-on-failure', '--warnings', 'off', '--suppress-health-check', 'all', '--no-color',
  ], {
    cwd: folder,
    env: {
      ...process.env,
      no_proxy: '127.0.0.1',
      PYTHONPATH: path.join(E2E, 'lib'),
      PYTHONDONTWRITEBYTECODE: '1',
      SCHEMATHESIS_HOOKS: 'openapi_hooks',
      OPENAPI_URL: server.url,
      OPENAPI_USER: 'adm:password',
      OPENAPI_STATUSES: statuses,
    },
    maxBuffer: 1 << 28,
  }).catch((error) => ({ failed: error.stdout || error }));
  assert.ok(!found.failed, `SEED=${SEED}\n${found.failed}`);

  // Requests that are all refused would find nothing.
  const seen = JSON.parse(await readFile(statuses, 'utf8'));
  const successful = Object.values(seen).filter((codes) => codes.some((code) => code < 300)).length;
  t.diagnostic(`${Object.keys(seen).length} operations, ${successful} of them successful`);
  // About a hundred of 297 are, also on a busy machine.
  assert.ok(successful > 50, JSON.stringify(seen));
});
