// A headless Chromium: the program in CHROMIUM, or the first of NAMES on PATH. Without one, tests are skipped.

import { once } from 'node:events';
import { accessSync, constants } from 'node:fs';
import http from 'node:http';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { skipLoudly } from './server.mjs';

const NAMES = ['chromium', 'chromium-browser', 'google-chrome'];
const REQUIRED = (process.env.CONFORMANCE_REQUIRE ?? '').split(',').includes('chromium');

function program() {
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  const onPath = NAMES.flatMap((name) => folders.map((folder) => path.join(folder, name)));
  return (process.env.CHROMIUM ? [process.env.CHROMIUM] : onPath).find((file) => {
    try {
      accessSync(file, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

/** Starts a browser, which ends with the test `t`. Returns undefined and skips the test if there is none. */
export async function browser(t) {
  const executablePath = program();
  if (!executablePath && REQUIRED) throw new Error('there is no chromium');
  if (!executablePath) return skipLoudly(t, 'there is no chromium');
  const started = await chromium.launch({ executablePath });
  t.after(() => started.close());
  return started;
}

/**
 * The origin of a web server that answers every request with an empty page, until the test `t` ends.
 *
 * Browsers treat all ports of a host as one site. So its host differs from that of the servers under test.
 */
export async function emptyPages(t) {
  const server = http.createServer((_, response) => {
    response.setHeader('content-type', 'text/html; charset=utf-8');
    response.end('<!doctype html><title>page</title>');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://localhost:${server.address().port}`;
}
