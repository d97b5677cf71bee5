// The commands in the pages of the documentation, run as a reader would run them.
//
// A page is one session in an empty folder: its blocks of `sh` run in order, command by command. Lines `# …` directly
// below a command are what its output must contain; `...` and `…` stand for anything. `couch-layer serve` goes on in the
// background, as in a terminal of its own. A folder has one owner, so a command that opens the store itself ends the
// server first, and a later command with the server's address starts it again.

import { execFile, spawn } from 'node:child_process';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { BINARY, freePort } from './server.mjs';

/** The fenced blocks of a page: their language and text. */
export function blocks(page) {
  return [...page.matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)].map(([, language, text]) => ({ language, text }));
}

/** The commands of a block with their expected output. */
export function commands(block) {
  const lines = block.split('\n');
  const found = [];
  for (let at = 0; at < lines.length;) {
    let command = lines[at++];
    if (command.trim() === '' || command.startsWith('#')) continue;
    const document = command.match(/<<'(\w+)'/)?.[1];
    if (document) {
      do command += `\n${lines[at]}`; while (at < lines.length && lines[at++] !== document);
    }
    while (!document && at < lines.length && (command.endsWith('\\') || (command.match(/'/g) ?? []).length % 2 === 1)) {
      command += `\n${lines[at++]}`;
    }
    const expected = [];
    while (lines[at]?.startsWith('# ')) expected.push(lines[at++].slice(2));
    found.push({ command, expected });
  }
  return found;
}

/** A pattern for an expected line. */
export function pattern(expected) {
  const parts = expected.trim().split(/\.\.\.|…/).map((part) => part.replace(/[\\^$*+?.()|[\]{}]/g, '\\$&'));
  return new RegExp(parts.join('[\\s\\S]*?'));
}

const SERVE = /^((?:\w+=\S+ )*)couch-layer serve\b/;

export class Session {
  /** `hosts`: which address on this machine stands for a name in the page. */
  static async start(folder, { hosts = {} } = {}) {
    const session = new Session();
    session.folder = folder;
    session.port = await freePort();
    session.metricsPort = await freePort();
    session.hosts = hosts;
    session.state = path.join(folder, '.state');
    session.names = new Set();
    await writeFile(session.state, '');
    await mkdir(path.join(folder, '.bin'));
    await symlink(BINARY, path.join(folder, '.bin/couch-layer'));
    await writeFile(path.join(folder, '.curlrc'), 'silent\nshow-error\n');
    session.env = { PATH: `${path.join(folder, '.bin')}:${process.env.PATH}`, HOME: folder, no_proxy: '*' };
    return session;
  }

  /** A text of the page with this session's addresses. */
  here(text) {
    let here = text.replaceAll(/\b(127\.0\.0\.1|0\.0\.0\.0):5984\b/g, `127.0.0.1:${this.port}`)
      .replaceAll('127.0.0.1:17986', `127.0.0.1:${this.metricsPort}`);
    for (const [name, address] of Object.entries(this.hosts)) here = here.replaceAll(name, address);
    return here;
  }

  /** Runs a block, and throws at the first command that fails or whose output is not as the page says. */
  async run(block) {
    for (const { command, expected } of commands(block)) {
      const here = this.here(command);
      if (SERVE.test(here)) {
        await this.stop();
        await this.#serve(here);
        continue;
      }
      if (here.includes(`127.0.0.1:${this.port}`)) {
        if (!this.server && this.served) await this.#serve(this.served);
      } else if (/(^|[\s;|])couch-layer /.test(here)) {
        await this.stop();
      }
      for (const [, name] of here.matchAll(/^(?:export )?([A-Z_]+)=(?:\S*$|\$\()/gm)) this.names.add(name);
      const keep = [...this.names].map((name) => `declare -p ${name} 2>/dev/null || true`).join('; ') || 'true';
      const script = `set -e; . ${this.state}\n${here}\n{ ${keep}; } > ${this.state}`;
      const { code, stdout, stderr } = await execute('bash', ['-c', script], { cwd: this.folder, env: this.env });
      if (code !== 0) throw new Error(`exit code ${code}: ${command}\n${stdout}${stderr}`);
      // Like another failure: a page that shows an error says so.
      const isError = /^\{"error":/m.test(stdout) && !expected.some((line) => line.includes('error'));
      if (isError) throw new Error(`an error of: ${command}\n${stdout}`);
      for (const line of expected) {
        if (!pattern(line).test(stdout + stderr)) throw new Error(`expected ${line} of: ${command}\n${stdout}${stderr}`);
      }
    }
  }

  async #serve(command) {
    this.served = command;
    const listen = / --listen | --config /.test(command) ? '' : ` --listen 127.0.0.1:${this.port}`;
    const script = command.replace(SERVE, `$1exec couch-layer serve${listen}`);
    const child = spawn('bash', ['-c', script], { cwd: this.folder, env: this.env, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    this.ended = new Promise((resolve) => { child.once('exit', resolve); });
    const listening = new Promise((resolve) => {
      child.stdout.on('data', (data) => { output += data; if (/listens on/.test(output)) resolve(true); });
      child.stderr.on('data', (data) => { output += data; });
    });
    if (await Promise.race([listening, this.ended]) !== true) throw new Error(`the server ended: ${command}\n${output}`);
    this.server = child;
  }

  /** Ends the server, if one runs. */
  async stop() {
    if (!this.server) return;
    this.server.kill('SIGTERM');
    await this.ended;
    this.server = undefined;
  }
}

export function execute(program, args, options) {
  return new Promise((resolve) => {
    execFile(program, args, { timeout: 120_000, ...options }, (error, stdout, stderr) =>
      resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr }));
  });
}
