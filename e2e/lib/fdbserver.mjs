// A FoundationDB server for one test: a process on a free loopback port, ended by its process id. `fdbserver` and
// `fdbcli` come from FDBSERVER and FDBCLI, or from PATH.

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { freePort, run, skipLoudly, temporaryFolder } from './server.mjs';

const SERVER = process.env.FDBSERVER || 'fdbserver';
const CLI = process.env.FDBCLI || 'fdbcli';
const REQUIRED = (process.env.CONFORMANCE_REQUIRE ?? '').split(',').includes('fdbserver');

function execute(program, args) {
  return new Promise((resolve) => {
    execFile(program, args, { timeout: 60_000 }, (error, stdout, stderr) =>
      resolve({ missing: error?.code === 'ENOENT', output: stdout + stderr }));
  });
}

export class FdbServer {
  /** Starts a server with an empty database. Returns undefined and skips the test if that is impossible. */
  static async start(t) {
    const reason = await whyNot();
    if (reason && REQUIRED) throw new Error(reason);
    if (reason) return void skipLoudly(t, reason);
    const server = new FdbServer();
    server.folder = await temporaryFolder(t);
    server.address = `127.0.0.1:${await freePort()}`;
    server.file = path.join(server.folder, 'fdb.cluster');
    await writeFile(server.file, `test:test@${server.address}\n`);
    for (const name of ['data', 'logs']) await mkdir(path.join(server.folder, name));
    t.after(() => server.kill());
    server.restart();
    await server.#says('configure new single ssd', 'Database created');
    return server;
  }

  /** Starts the process again on the same data. */
  restart() {
    const file = (name) => path.join(this.folder, name);
    this.child = spawn(SERVER, [
      '--public-address', this.address, '--listen-address', 'public', '--cluster-file', this.file,
      '--datadir', file('data'), '--logdir', file('logs'),
    ], { stdio: 'ignore' });
  }

  /** Kills the process without a warning. */
  async kill() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill('SIGKILL');
    await once(this.child, 'exit');
  }

  /** Waits until clients can use the database. */
  async available() {
    await this.#says('status minimal', 'The database is available');
  }

  async #says(command, words) {
    let said;
    for (const deadline = Date.now() + 120_000; Date.now() < deadline; await sleep(200)) {
      said = await execute(CLI, ['-C', this.file, '--timeout', '10', '--exec', command]);
      if (said.output.includes(words)) return;
    }
    throw new Error(`${command}: ${said.output}`);
  }
}

async function whyNot() {
  for (const program of [SERVER, CLI]) {
    if ((await execute(program, ['--version'])).missing) return `there is no ${program}`;
  }
  const { stderr } = await run(['check', 'none', '--engine', 'fdb:/nowhere/fdb.cluster']);
  return stderr.includes('no engine fdb') ? 'the binary was built without the feature fdb' : undefined;
}
