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
/** FoundationDB's tools for backups, from PATH. */
const TOOLS = ['fdbbackup', 'fdbrestore', 'backup_agent'];
const REQUIRED = (process.env.CONFORMANCE_REQUIRE ?? '').split(',').includes('fdbserver');

function execute(program, args, timeout = 60_000) {
  return new Promise((resolve) => {
    execFile(program, args, { timeout }, (error, stdout, stderr) =>
      resolve({ missing: error?.code === 'ENOENT', failed: error !== null, output: stdout + stderr }));
  });
}

export class FdbServer {
  /**
   * Starts a server with an empty database, and an agent for its backups if `agent`. Returns undefined and skips the
   * test if that is impossible.
   */
  static async start(t, { agent = false } = {}) {
    const reason = await whyNot(agent ? TOOLS : []);
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
    if (agent) {
      const child = spawn('backup_agent', ['-C', server.file], { stdio: 'ignore' });
      t.after(() => child.kill('SIGKILL'));
    }
    return server;
  }

  /** Backs the database up below `folder`. Resolves to the backup's URL. */
  async backUp(folder) {
    const base = `file://${folder}`;
    await tool('fdbbackup', 'start', '-C', this.file, '-d', base, '-w');
    const { output } = await tool('fdbbackup', 'list', '-b', base);
    return output.split('\n').find((line) => line.startsWith('file://')).trim();
  }

  /** Restores a backup into the empty database. */
  async restore(url) {
    await tool('fdbrestore', 'start', '--dest-cluster-file', this.file, '-r', url, '-w');
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

async function tool(program, ...args) {
  const ended = await execute(program, args, 300_000);
  if (ended.failed) throw new Error(`${program} ${args.join(' ')}: ${ended.output}`);
  return ended;
}

async function whyNot(tools) {
  for (const program of [SERVER, CLI, ...tools]) {
    if ((await execute(program, ['--version'])).missing) return `there is no ${program}`;
  }
  const { stderr } = await run(['check', 'none', '--engine', 'fdb:/nowhere/fdb.cluster']);
  return stderr.includes('no engine fdb') ? 'the binary was built without the feature fdb' : undefined;
}
