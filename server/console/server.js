// The server: its health, its figures of the last hour, its tasks, the end of its log.

import { ROOT, get, query, session, url } from './api.js';
import { count, facts, field, fill, h, panel, repeat, size, svg, table } from './dom.js';

/** Time between two looks, in milliseconds. */
const EVERY = 5_000;

/** The time that is shown, in milliseconds. */
const HOUR = 3_600_000;

/** Samples that lie closer together say nothing of a rate. */
const CLOSE = 1_000;

/** The samples of the hour, of the server that began at a time. */
let [began, samples] = [0, []];

/** Reads the samples since the last one that is known. The server takes them, whether or not somebody looks. */
async function read(signal) {
  const after = samples.at(-1)?.at;
  const found = await get(url('_couch_layer', 'figures') + query({ after }), { signal });
  if (found.began_ms !== began) {
    [began, samples] = [found.began_ms, []];
    if (after !== undefined) {
      await read(signal);
      return;
    }
  }
  for (const [at, ...values] of found.samples) {
    // The first one stays: there is no rate without it.
    if (samples.length > 1 && at - samples.at(-1).at < CLOSE) samples.pop();
    samples.push({ at, ...Object.fromEntries(found.names.map((name, place) => [name, values[place]])) });
  }
  const first = samples.at(-1).at - HOUR;
  samples = samples.filter(({ at }) => at >= first);
}

/** The change of a counter in a second, between samples. A restart begins at zero. */
const rate = (name) =>
  samples.slice(1).map((one, at) => ({
    at: one.at,
    value: Math.max(0, ((one[name] - samples[at][name]) * 1000) / (one.at - samples[at].at)),
  }));
const level = (name) => samples.map((one) => ({ at: one.at, value: one[name] }));

/** A figure of the last hour: its value now, and its line. */
function chart(name, points, show, kind = '') {
  const [width, height] = [300, 64];
  const now = points.at(-1)?.at ?? 0;
  const most = Math.max(...points.map(({ value }) => value), 1e-9);
  const begin_ = Math.min(points[0]?.at ?? now, now - 60_000);
  const x = (at) => ((at - begin_) / (now - begin_)) * width;
  const y = (value) => height - 2 - (value / (most * 1.1)) * (height - 6);
  const line = points.map(({ at, value }) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join('L');
  const last = points.at(-1)?.value ?? 0;
  return h(
    'figure',
    { class: `chart ${kind}` },
    h('figcaption', null, name, h('b', null, show(last))),
    svg(
      'svg',
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${name}: ${show(last)} now, ${show(most === 1e-9 ? 0 : most)} at most`,
      },
      points.length > 1 && [
        svg('path', {
          class: 'area',
          d: `M${x(points[0].at).toFixed(1)} ${height}L${line}L${x(points.at(-1).at).toFixed(1)} ${height}Z`,
        }),
        svg('path', { class: 'line', d: `M${line}` }),
      ],
    ),
  );
}

const seconds = (all) =>
  [
    [86_400, 'd'],
    [3_600, 'h'],
    [60, 'min'],
    [1, 's'],
  ]
    .reduce(
      ({ left, parts }, [unit, name]) => {
        const many = Math.floor(left / unit);
        return { left: left - many * unit, parts: many && parts.length < 2 ? [...parts, `${many} ${name}`] : parts };
      },
      { left: all, parts: [] },
    )
    .parts.join(' ') || '0 s';

const perSecond = (value) => `${value >= 100 ? count(Math.round(value)) : value.toFixed(1)}/s`;

/** The tasks that run, and how far they are. */
const tasks = (all) =>
  table(
    'Tasks',
    ['What', 'Where', 'How far', 'Since'],
    all.map((task) => [
      task.type,
      task.database ?? `${task.source ?? ''} → ${task.target ?? ''}`,
      task.progress === undefined
        ? count(task.changes_done ?? task.docs_written ?? 0)
        : h(
            'span',
            { class: 'row tight' },
            h('progress', { max: 100, value: task.progress, 'aria-label': `${task.type} ${task.progress} %` }),
            `${task.progress} %`,
          ),
      task.started_on ? new Date(task.started_on * 1000).toLocaleTimeString() : '',
    ]),
    'No task is running.',
  );

/** Most lines of the log that are shown; older ones go. */
const LINES = 512;

/** Levels, the gravest first. A line is shown if its level is not after the chosen one. */
const LEVELS = ['ERROR', 'WARN', 'INFO', 'DEBUG', 'TRACE'];

/** The end of the log: `{ element, read }`. Lines are text, whatever is in them. */
function log(signal) {
  let [lines, last] = [[], 0];
  const level = h(
    'select',
    null,
    [
      ['ERROR', 'Errors'],
      ['WARN', 'Errors and warnings'],
      ['TRACE', 'All lines'],
    ].map(([value, name]) => h('option', { value, selected: value === 'TRACE' }, name)),
  );
  const words = h('input', { type: 'search', spellcheck: 'false', autocapitalize: 'off' });
  const list = h('pre', { class: 'code', tabindex: '0', role: 'log', 'aria-label': 'The end of the log' });
  const draw = () => {
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    const wanted = words.value.toLowerCase();
    const shown = lines.filter(
      (one) =>
        LEVELS.indexOf(one.level) <= LEVELS.indexOf(level.value) &&
        `${one.target} ${one.text}`.toLowerCase().includes(wanted),
    );
    fill(
      list,
      shown.length === 0 && 'There is no such line.',
      shown.map((one) => [
        `${one.time.replace('T', ' ').slice(0, 19)} `,
        h('span', { class: LEVELS.indexOf(one.level) < 2 ? 'wrong' : null }, one.level.padEnd(5)),
        ` ${one.target === 'audit' ? 'audit ' : ''}${one.text}\n`,
      ]),
    );
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  };
  const read = async () => {
    const found = await get(url('_couch_layer', 'log') + query({ after: last }), { signal });
    if (found.lines.length === 0 && found.last === last && last > 0) return;
    // After a restart its numbers begin again, and all lines are new.
    const isNew = found.last < last;
    last = found.last;
    lines = [...(isNew ? [] : lines), ...found.lines].slice(-LINES);
    draw();
  };
  level.addEventListener('change', draw);
  words.addEventListener('input', draw);
  return {
    read,
    element: panel(
      'Log',
      h(
        'p',
        { class: 'hint' },
        `The last ${LINES} lines of this server’s process. Times are in UTC. The whole log is where the server writes it.`,
      ),
      h('div', { class: 'row' }, field('Lines', level), field('With these letters', words)),
      list,
    ),
  };
}

export async function page({ signal }) {
  await read(signal);
  const [welcome, up, versions] = await Promise.all([
    get(ROOT.href, { signal }),
    get(url('_up'), { signal }),
    get(url('_node', '_local', '_versions'), { signal }),
  ]);
  const [charts, running, since] = [h('div', { class: 'charts' }), h('div'), h('span')];
  const tail = session.isOpenAdmin ? null : log(signal);
  const uptime = h('span');
  const draw = () => {
    const last = samples.at(-1).at;
    uptime.textContent = seconds(Math.floor(Math.max(last - began, 0) / 1_000));
    since.textContent = new Date(samples[0].at).toLocaleTimeString();
    fill(
      charts,
      chart('Requests', rate('requests'), perSecond),
      chart('Documents written', rate('writes'), perSecond),
      chart('Documents read', rate('reads'), perSecond),
      chart('Commits', rate('commits'), perSecond),
      chart('Median time of a request', level('median_ms'), (ms) => `${ms.toFixed(1)} ms`),
      chart('Memory', level('memory'), size),
      chart('Failed requests (5xx)', rate('failed'), perSecond, 'failing'),
      chart('Searches without an index', rate('scans'), perSecond, 'failing'),
    );
  };
  const load = async () => {
    const [all] = await Promise.all([get(url('_active_tasks'), { signal }), tail?.read()]);
    fill(running, tasks(all));
  };
  draw();
  await load();
  repeat(EVERY, signal, async () => {
    await read(signal);
    draw();
    await load();
  });
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Server'),
      h(
        'span',
        { class: `badge ${up.status === 'ok' ? 'winner' : 'bad'}` },
        up.status === 'ok' ? 'healthy' : up.status,
      ),
    ),
    panel(
      null,
      facts(
        ['Version', `${welcome.vendor?.name ?? ''} ${welcome.vendor?.version ?? ''}`],
        ['Speaks as', `CouchDB ${welcome.version}`],
        ['Running for', uptime],
        ['Identity', h('code', null, welcome.uuid)],
        versions.javascript_engine && [
          'Functions',
          `${versions.javascript_engine.name} ${versions.javascript_engine.version}`,
        ],
      ),
    ),
    panel(
      'The last hour',
      h('p', { class: 'hint' }, 'Of this server’s process, from ', since, ' to now. A sample every ten seconds.'),
      charts,
    ),
    panel('Tasks', running),
    tail?.element,
  ];
}
