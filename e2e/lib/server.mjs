// The binary under test: started on a free port of the loopback interface, ended by process id.

import { spawn, execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** Folder of these tests, possibly a copy outside the repository. */
export const E2E = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
export const ROOT = process.env.COUCH_LAYER_ROOT ?? path.dirname(E2E);
export const BINARY = process.env.COUCH_LAYER_BIN ?? path.join(ROOT, 'target/release/couch-layer');

// The caller's settings are not passed to the binary.
const ENVIRONMENT = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith('COUCH')),
);

/** A folder that is removed when the test `t` ends. */
export async function temporaryFolder(t) {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'couch-layer-e2e-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

export async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

/** Runs the binary until it ends. Never throws because of its exit code. */
export function run(args, { env = {}, input, wrapper = [], ...options } = {}) {
  const [program, ...rest] = [...wrapper, BINARY, ...args];
  return new Promise((resolve) => {
    const child = execFile(
      program,
      rest,
      { env: { ...ENVIRONMENT, ...env }, maxBuffer: 1 << 30, timeout: 300_000, ...options },
      (error, stdout, stderr) => resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr }),
    );
    child.stdin.on('error', () => {});
    child.stdin.end(input);
  });
}

export class Server {
  /** Starts a server on `engine`; resolves once it answers. */
  static async start(engine, { port, env = {}, wrapper = [], args = [] } = {}) {
    const server = new Server();
    server.port = port ?? (await freePort());
    server.wrapped = wrapper.length > 0;
    server.url = `http://127.0.0.1:${server.port}`;
    const [program, ...rest] = [
      ...wrapper, BINARY, 'serve', '--engine', engine, '--listen', `127.0.0.1:${server.port}`, ...args,
    ];
    server.output = '';
    server.child = spawn(program, rest, { env: { ...ENVIRONMENT, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    server.ended = once(server.child, 'exit').then(([code, signal]) => ({ code, signal }));
    for (const stream of [server.child.stdout, server.child.stderr]) {
      stream.on('data', (data) => { server.output += data; });
    }
    const up = await Promise.race([server.#answers(), server.ended.then((end) => ({ end }))]);
    if (up.end) throw new Error(`the server ended (${JSON.stringify(up.end)}): ${server.output}`);
    return server;
  }

  /** The token that names the first administrator, from the address that the server printed. */
  get setupToken() {
    const [, token] = /_utils\/#\/signin\?token=([0-9a-f]+)/.exec(this.output) ?? [];
    if (!token) throw new Error(`the server printed no token: ${this.output}`);
    return token;
  }

  async #answers() {
    for (const deadline = Date.now() + 60_000; Date.now() < deadline; await sleep(20)) {
      try {
        const response = await fetch(`${this.url}/_up`);
        await response.arrayBuffer();
        if (response.status < 500) return {};
      } catch { /* not yet */ }
    }
    throw new Error(`the server does not answer: ${this.output}`);
  }

  /** Signals the server itself, which may run below a wrapper such as strace. */
  #signal(signal) {
    const { pid } = this.child;
    if (this.wrapped) {
      for (const below of readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')) {
        if (below) process.kill(Number(below), signal);
      }
    } else {
      this.child.kill(signal);
    }
  }

  /** Ends the server with SIGTERM. Resolves to its exit code and signal. */
  async stop() {
    this.#signal('SIGTERM');
    const end = await Promise.race([this.ended, sleep(60_000, null, { ref: false })]);
    if (!end) {
      this.#signal('SIGKILL');
      throw new Error(`the server does not end on SIGTERM: ${this.output}`);
    }
    return end;
  }

  /** Kills the server without a warning. */
  async kill() {
    this.#signal('SIGKILL');
    return this.ended;
  }

  /** Ends the server when the test `t` ends, whatever its result. */
  endWith(t) {
    t.after(async () => {
      if (this.child.exitCode === null && this.child.signalCode === null) await this.kill();
    });
    return this;
  }
}

/** One request with a JSON body; resolves to `{ status, body, text, headers }`. */
export async function request(url, { method = 'GET', body, headers = {}, signal } = {}) {
  const response = await fetch(url, {
    method,
    signal,
    headers: body === undefined ? headers : { 'content-type': 'application/json', ...headers },
    body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  let parsed;
  try { parsed = JSON.parse(text); } catch { parsed = text; }
  return { status: response.status, body: parsed, text, headers: response.headers };
}

/** As `request`, and throws unless the status is 2xx. */
export async function expectOk(url, options) {
  const answer = await request(url, options);
  if (answer.status < 200 || answer.status > 299) {
    throw new Error(`${options?.method ?? 'GET'} ${url}: ${answer.status} ${JSON.stringify(answer.body)}`);
  }
  return answer.body;
}

/** Reports visibly that a test cannot run here. */
export function skipLoudly(t, reason) {
  console.error(`\n*** SKIPPED: ${t.name}: ${reason}\n`);
  t.skip(reason);
}
