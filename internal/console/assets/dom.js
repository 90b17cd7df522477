// Elements and numbers. Text of the cluster becomes text nodes and attributes only, never markup.

// h makes an element. Properties that begin with "on" are listeners; null and false are left out.
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

const svgSpace = 'http://www.w3.org/2000/svg';

// s makes an element of SVG.
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(svgSpace, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || (value === false && !name.startsWith('aria-'))) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true && !name.startsWith('aria-') ? '' : String(value));
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// put replaces what an element contains.
export function put(element, ...children) {
  element.replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
}

const bytesResources = /^(memory|ephemeral-storage|hugepages-.*)$/;

// amount prints an amount of a resource that is in its base unit.
export function amount(resource, n) {
  if (resource === 'cpu') return cores(n);
  if (bytesResources.test(resource)) return bytes(n);
  return String(n);
}

function cores(milli) {
  return Math.abs(milli) >= 10000 || milli % 1000 === 0 ? (milli / 1000).toFixed(milli % 1000 ? 1 : 0) : milli + 'm';
}

const units = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi'];

export function bytes(n) {
  let i = 0;
  let v = n;
  while (Math.abs(v) >= 1024 && i < units.length - 1) {
    v /= 1024;
    i++;
  }
  return (Math.abs(v) >= 100 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(1)) + units[i];
}

export function percent(part, whole) {
  return whole > 0 ? Math.round((100 * part) / whole) + '%' : '–';
}

export function count(n, one, many) {
  return n === 1 ? '1 ' + one : n + ' ' + many;
}

export function time(text) {
  if (!text) return '';
  const at = new Date(text);
  const exact = at.getMilliseconds() ? '.' + String(at.getMilliseconds()).padStart(3, '0') : '';
  const day = at.toDateString() === new Date().toDateString() ? '' : at.toISOString().slice(0, 10) + ' ';
  return day + at.toTimeString().slice(0, 8) + exact;
}

export const nodeLink = (name) => '#/node/' + encodeURIComponent(name);
export const podLink = (name) => '#/pod/' + name.split('/').map(encodeURIComponent).join('/');

// loadLine draws a load line: the box is the capacity, the mark is where the node is full.
export function loadLine(line) {
  const whole = Math.max(line.c, line.a, 1);
  const over = line.q > line.a;
  const box = h('div', {
    class: 'line' + (over ? ' over' : ''),
    role: 'img',
    'aria-label': `${line.r}: ${amount(line.r, line.q)} requested of ${amount(line.r, line.a)} allocatable, ` +
      `capacity ${amount(line.r, line.c)}${over ? ', over-committed' : ''}`,
  });
  const at = (v) => Math.min(100, (100 * v) / whole) + '%';
  const load = h('div', { class: 'load' });
  load.style.width = at(line.q);
  const kept = h('div', { class: 'kept' });
  kept.style.width = 100 - Math.min(100, (100 * line.a) / whole) + '%';
  const full = h('div', { class: 'full' });
  full.style.left = at(line.a);
  box.append(kept, load, full);
  return box;
}

// ask posts a question, and returns the answer, or throws what is wrong with it.
export async function ask(path, question) {
  const response = await fetch(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(text.trim());
  return text ? JSON.parse(text) : null;
}

// card is a part of a view with a heading; set replaces what is below the heading.
export function card(title, ...children) {
  const body = h('div', {}, ...children);
  const element = h('section', { class: 'card', 'aria-label': title }, h('h3', {}, title), body);
  return { element, body, set: (...content) => put(body, ...content) };
}

export function table(heads, rows) {
  return h('div', { class: 'scroll', tabindex: rows.length > 8 ? 0 : null }, h('table', {},
    h('thead', {}, h('tr', {}, heads.map((x) => h('th', { scope: 'col', class: x.num ? 'num' : null }, x.text || x)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, i) =>
      h('td', { class: heads[i].num ? 'num' : null }, cell)))))));
}

// notes says what a reader must know, and what could not be read.
export function notes(answer) {
  const list = [
    ...(answer.notes || []).map((n) => h('li', {}, n)),
    ...(answer.unseen || []).map((u) => h('li', {}, h('b', {}, 'Not seen: '), `${u.what}: ${u.effect} (${u.error})`)),
  ];
  return list.length ? h('ul', { class: 'quiet' }, list) : null;
}
