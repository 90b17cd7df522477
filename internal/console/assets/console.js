// The page: one stream of events, one view at a time. A view is {element, update(what), looks, close()}.
import { h, put, ask } from './dom.js';
import { fleetView } from './fleet.js';
import { nodeView } from './node.js';
import { waitingView } from './waiting.js';
import { podView } from './pod.js';
import { whatIfView } from './whatif.js';

// state is what the stream has said so far.
export const state = { rows: new Map(), waiting: null, health: null, node: null, pod: null };

const main = document.getElementById('main');
let view = null;
let stream = '';

function open(where) {
  const [, kind, ...rest] = where.split('/').map(decodeURIComponent);
  if (view && view.close) view.close();
  state.node = null;
  state.pod = null;
  if (kind === 'node') view = nodeView(state, rest.join('/'));
  else if (kind === 'pod') view = podView(state, rest[0], rest.slice(1).join('/'));
  else if (kind === 'waiting') view = waitingView(state);
  else if (kind === 'what-if') view = whatIfView(state);
  else view = fleetView(state);
  put(main, view.element);
  document.title = `${view.title} · Plimsoll console`;
  for (const a of document.querySelectorAll('nav a')) {
    if (a.dataset.view === (kind || 'fleet')) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  look();
  view.update({ all: true });
}

function look() {
  if (!stream) return;
  ask('look', { stream, ...(view.looks || {}) }).catch(() => {}); // the stream is opened again, which looks again
}

function receive(m) {
  if (m.stream) {
    stream = m.stream;
    state.rows.clear();
    state.node = null;
    look();
  }
  if (m.health) state.health = m.health;
  for (const row of m.rows || []) state.rows.set(row.n, row);
  for (const name of m.gone || []) state.rows.delete(name);
  if (m.waiting) state.waiting = m.waiting;
  if (m.node && view.looks && view.looks.node === m.node.name) state.node = merge(m.node);
  if (m.pod && view.looks && view.looks.pod === m.pod.name) state.pod = m.pod;
  showHealth();
  const waits = state.waiting ? state.waiting.pods : 0;
  document.getElementById('waiting-count').textContent = waits ? `(${waits})` : '';
  view.update({
    rows: Boolean(m.rows || m.gone || m.stream), waiting: Boolean(m.waiting), node: Boolean(m.node), pod: Boolean(m.pod),
  });
}

const samplesMax = 720;

// merge adds a message about the node to what is known of it.
function merge(m) {
  const before = m.whole || !state.node ? { samples: [] } : state.node;
  const samples = before.samples.concat(m.samples || []).slice(-samplesMax);
  const changed = Object.fromEntries(Object.entries(m).filter(([, v]) => v !== null && v !== undefined));
  const noMap = m.map ? '' : m.noMap || before.noMap;
  return { ...before, ...changed, samples, problem: m.problem || '', noMap };
}

let lost = null; // when the stream was lost

function showHealth() {
  const box = document.getElementById('health');
  const health = state.health;
  box.className = '';
  let text = '';
  if (lost) {
    text = `The console's program does not answer since ${lost.toTimeString().slice(0, 8)}. What is shown is older.`;
  } else if (health && health.error) {
    text = `The API server does not answer since ${new Date(health.since).toTimeString().slice(0, 8)}; what is shown is ` +
      `from before. (${health.error})`;
  } else if (health && health.behind) {
    text = `Reading ${health.behind.join(', ')} …`;
    box.className = 'busy';
  }
  if (box.textContent !== text) box.textContent = text;
  if (health) document.getElementById('server').textContent = `${health.server} · plimsoll ${health.version}`;
}

function listen() {
  const source = new EventSource('events');
  source.onmessage = (e) => {
    lost = null;
    receive(JSON.parse(e.data));
  };
  source.onerror = () => {
    lost = lost || new Date();
    showHealth();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

// Keys that work everywhere, unless somebody writes.
document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches('input, select, textarea')) return;
  const to = { f: '#/fleet', w: '#/waiting', i: '#/what-if' }[e.key];
  if (to) location.hash = to;
  else if (e.key === '/') document.getElementById('go-to').focus();
  else return;
  e.preventDefault();
});

document.getElementById('go').addEventListener('submit', (e) => {
  e.preventDefault();
  const input = document.getElementById('go-to');
  const text = input.value.trim().replace(/^\/+/, '');
  if (!text) return;
  location.hash = text.includes('/') ? '#/pod/' + text.split('/').map(encodeURIComponent).join('/')
    : '#/node/' + encodeURIComponent(text);
  input.value = '';
  main.focus();
});

document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  localStorage.setItem('theme', root.dataset.theme);
  view.update({ all: true });
});
if (localStorage.getItem('theme')) document.documentElement.dataset.theme = localStorage.getItem('theme');

addEventListener('hashchange', () => {
  open(location.hash.slice(1) || '/fleet');
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

open(location.hash.slice(1) || '/fleet');
listen();
