// The engine of tests that work on any engine: each test's usual one, or the one in E2E_ENGINE.
//
//   E2E_ENGINE=fdb    the FoundationDB cluster of FDB_CLUSTER_FILE, each store under a separate prefix;
//                     the binary is built with `--features fdb`, and fdbcli is on PATH, or in FDBCLI

import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import path from 'node:path';
import { after } from 'node:test';
import { promisify } from 'node:util';

import { temporaryFolder } from './server.mjs';

const CHOSEN = process.env.E2E_ENGINE;

const prefixes = [];

/** The engines of a test for several engines: `usual`, or the selected one. */
export const engines = (...usual) => (CHOSEN ? [CHOSEN] : usual);

/** The URL of an empty store for the test `t`: on the engine `usual`, or on the selected one. */
export async function store(t, usual = 'sled') {
  const engine = CHOSEN ?? usual;
  switch (engine) {
    case 'mem': return 'mem:';
    case 'fdb': return cluster();
    default: return `${engine}:${path.join(await temporaryFolder(t), 'data')}`;
  }
}

function cluster() {
  const file = process.env.FDB_CLUSTER_FILE;
  if (!file) throw new Error('E2E_ENGINE=fdb needs FDB_CLUSTER_FILE');
  const prefix = `couch-layer e2e/${randomBytes(8).toString('hex')}/`;
  prefixes.push(prefix);
  return `fdb:${file}?prefix=${encodeURIComponent(prefix)}`;
}

// Runs after all servers of the file have ended, when nothing is written any more.
after(async () => {
  for (const prefix of prefixes) {
    // The prefix ends in a slash, and '0' is the next byte.
    const command = `writemode on; clearrange "${prefix}" "${prefix.slice(0, -1)}0"`;
    const { stdout } = await promisify(execFile)(process.env.FDBCLI ?? 'fdbcli', ['--timeout', '30', '--exec', command]);
    if (!stdout.includes('Committed')) throw new Error(`${prefix} stays in the cluster: ${stdout}`);
  }
});
