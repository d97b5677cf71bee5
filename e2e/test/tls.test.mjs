// curl connects to the server over TLS, with the certificate that `--tls-self-signed` made.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, run, temporaryFolder } from '../lib/server.mjs';

/** Runs curl until it ends. Never throws because of its exit code. */
function curl(...args) {
  return new Promise((resolve) => {
    execFile('curl', ['-sS', '--noproxy', '*', ...args], { timeout: 60_000 }, (error, stdout, stderr) =>
      resolve({ code: error?.code ?? 0, stdout, stderr }));
  });
}

test('curl and the commands reach a server by its certificate', async (t) => {
  const folder = await temporaryFolder(t);
  const [certificate, key] = ['cert.pem', 'key.pem'].map((name) => path.join(folder, name));
  const args = ['--tls-self-signed', '--tls-cert', certificate, '--tls-key', key];
  const server = (await Server.start(await store(t), { args })).endWith(t);
  assert.match(server.output, /listens on https:\/\//);
  const url = server.url.replace('http:', 'https:');

  const put = await curl('--cacert', certificate, '-X', 'PUT', `${url}/db`);
  assert.equal(put.stdout.trim(), '{"ok":true}', put.stderr);
  const doc = await curl('--cacert', certificate, '-X', 'PUT', `${url}/db/a`, '-d', '{"n": 1}');
  assert.match(doc.stdout, /"ok":true,"id":"a"/, doc.stderr);
  // A quotation mark that is not escaped, as in tutorials. HTTP/2 has no way to send it.
  const listed = await curl('--cacert', certificate, '--http1.1', '--globoff', `${url}/db/_all_docs?key="a"`);
  assert.match(listed.stdout, /"id":"a"/, listed.stderr);
  const escaped = await curl('--cacert', certificate, '-G', '--data-urlencode', 'key="a"', `${url}/db/_all_docs`);
  assert.match(escaped.stdout, /"id":"a"/, escaped.stderr);
  const spoken = await curl('--cacert', certificate, '-o', '/dev/null', '-w', '%{http_version} %{ssl_verify_result}', url);
  assert.equal(spoken.stdout, '2 0');

  assert.notEqual((await curl(`${url}/`)).code, 0, 'nobody vouches for the certificate');
  const plain = await curl(server.url);
  assert.match(plain.stdout, /This port speaks TLS/);

  const exported = await run(['export', 'db', '--url', url, '--tls-roots', certificate]);
  assert.equal(exported.code, 0, exported.stderr);
  assert.equal(JSON.parse(exported.stdout).n, 1);
  const refused = await run(['export', 'db', '--url', url]);
  assert.equal(refused.code, 1);
  // If the system has no roots at all, the error says so.
  assert.match(refused.stderr, /the certificate of https:\/\/127\.0\.0\.1:\d+ is not trusted|no server can be trusted/);
});
