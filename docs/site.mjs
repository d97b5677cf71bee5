// mdBook's preprocessor for this site (`book.toml`). It fails the build on a page that the summary lacks, and on a link
// that leads nowhere, to a heading too.
//
// Pages have links as they work in the repository, and some pages are symbolic links to files outside of `docs`. So each
// link is resolved from the page's own file: to a page of the site, or else to the file in the repository.

import { existsSync, readFileSync, readdirSync, realpathSync } from 'node:fs';
import path from 'node:path';

const DOCS = import.meta.dirname;
const ROOT = path.dirname(DOCS);
const REPOSITORY = 'https://github.com/couch-layer/couch-layer';

/** The identifier that mdBook and GitHub give a heading. */
function slug(heading) {
  const text = heading.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/[`*]/g, '');
  return text.trim().toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, '').replace(/\s/g, '-');
}

/** The parts of a page that are not code: `change` gets each of them. */
function prose(text, change) {
  return text.split(/(^ *```[\s\S]*?^ *```[^\n]*$|`[^`\n]+`)/m).map((part, at) => (at % 2 ? part : change(part))).join('');
}

const headings = new Map();
/** The identifiers of a file's headings. */
function anchors(file) {
  if (!headings.has(file)) {
    const lines = readFileSync(file, 'utf8').replace(/^ *```[\s\S]*?^ *```/gm, '').split('\n');
    headings.set(file, new Set(lines.filter((line) => /^#+ /.test(line)).map((line) => slug(line.replace(/^#+ /, '')))));
  }
  return headings.get(file);
}

function chapters(items) {
  return items.flatMap(({ Chapter }) => (Chapter ? [Chapter, ...chapters(Chapter.sub_items)] : []));
}

/** Adds the decision records below their index, which lists them. */
function addRecords(index) {
  // The number decides how deep a chapter is in the table of contents.
  const listed = readFileSync(path.join(DOCS, 'adr/README.md'), 'utf8').matchAll(/^\| \[(\d{4})\]\(([^)]+)\)/gm);
  for (const [, number, name] of listed) {
    const file = path.join(DOCS, 'adr', name);
    if (!existsSync(file)) continue; // the link is reported
    const content = readFileSync(file, 'utf8');
    index.sub_items.push({
      Chapter: {
        name: content.match(/^# (.*)/)?.[1] ?? number, content, sub_items: [],
        number: [...index.number, index.sub_items.length + 1],
        path: `adr/${name}`, source_path: `adr/${name}`, parent_names: [...index.parent_names, index.name],
      },
    });
  }
}

function preprocess(book) {
  const problems = [];
  addRecords(chapters(book.items).find((chapter) => chapter.source_path === 'adr/README.md'));
  const all = chapters(book.items).filter((chapter) => chapter.source_path);
  const pages = new Map(all.map((chapter) => [realpathSync(path.join(DOCS, chapter.source_path)), chapter.source_path]));

  for (const entry of readdirSync(DOCS, { recursive: true })) {
    const isPage = entry.endsWith('.md') && entry !== 'SUMMARY.md';
    if (isPage && !all.some((chapter) => chapter.source_path === entry)) {
      problems.push(`docs/${entry} is not in ${entry.startsWith('adr/') ? 'docs/adr/README.md' : 'docs/SUMMARY.md'}`);
    }
  }

  for (const chapter of all) {
    const own = realpathSync(path.join(DOCS, chapter.source_path));
    const shown = path.relative(ROOT, own);
    const resolve = (target) => {
      if (/^[a-z]+:/.test(target)) return target;
      const [name, anchor] = target.split('#');
      const file = name === '' ? own : path.resolve(path.dirname(own), name);
      if (!existsSync(file)) {
        problems.push(`${shown}: there is no file ${target}`);
        return target;
      }
      const real = realpathSync(file);
      if (anchor && real.endsWith('.md') && !anchors(real).has(anchor)) problems.push(`${shown}: there is no heading ${target}`);
      const suffix = anchor === undefined ? '' : `#${anchor}`;
      if (pages.has(real)) {
        if (name === '') return target;
        return path.relative(path.dirname(chapter.source_path), pages.get(real)) + suffix;
      }
      if (path.relative(ROOT, real).startsWith('..')) problems.push(`${shown}: ${target} is not in the repository`);
      return `${REPOSITORY}/blob/main/${path.relative(ROOT, real)}${suffix}`;
    };
    chapter.content = prose(chapter.content, (text) => text.replace(/\]\(([^()\s]+)\)/g, (_, target) => `](${resolve(target)})`));
  }
  return problems;
}

if (process.argv[2] === 'supports') process.exit(0);
const [, book] = JSON.parse(readFileSync(0, 'utf8'));
const problems = preprocess(book);
for (const problem of problems) console.error(problem);
if (problems.length > 0) process.exit(1);
process.stdout.write(JSON.stringify(book));
