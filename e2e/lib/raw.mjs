// Raw requests, with any bytes in path, headers and body, and raw answers: `fetch` normalises paths, adds headers and
// unpacks bodies.

import http from 'node:http';

const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });

/** One request to `origin`; resolves to `{ status, headers, bytes, text }`. A connection that breaks has its error as status. */
export function raw(origin, method, path, { headers = {}, body, timeout = 20_000 } = {}) {
  const { hostname, port } = new URL(origin);
  const sent = Object.fromEntries(Object.entries(headers).filter(([, value]) => value !== undefined));
  const data = body === undefined || typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body);
  if (data !== undefined) {
    if (!('content-type' in sent)) sent['content-type'] = 'application/json';
    if (sent['content-type'] === null) delete sent['content-type'];
    if (sent['transfer-encoding'] === undefined) sent['content-length'] = Buffer.byteLength(data);
  }
  return new Promise((resolve) => {
    const parts = [];
    const answer = (status, got = {}) => {
      const bytes = Buffer.concat(parts);
      resolve({ status, headers: got, bytes, text: bytes.toString() });
    };
    const request = http.request({ agent, hostname, port, method, path, headers: sent });
    request.setTimeout(timeout, () => request.destroy(new Error('timeout')));
    request.on('error', (error) => answer(error.message));
    request.on('response', (response) => {
      response.on('data', (data) => parts.push(data));
      response.on('error', (error) => answer(error.message));
      response.on('end', () => answer(response.statusCode, response.headers));
    });
    request.end(data);
  });
}
