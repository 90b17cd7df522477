// All nodes as load lines. Only the rows on the screen are elements, so that thousands of nodes cost as much as few.
import { h, put, amount, count, loadLine, nodeLink, percent } from './dom.js';

const share = (line) => (line && line.a > 0 ? line.q / line.a : line && line.q > 0 ? 2 : 0);
const lineOf = (row, resource) => row.l.find((l) => l.r === resource) || { r: resource, c: 0, a: 0, q: 0 };
const trouble = (row) => row.s !== 'ready' || Boolean(row.p) || row.l.some((l) => l.q > l.a);

const orders = {
  fullest: (r) => (a, b) => share(lineOf(b, r)) - share(lineOf(a, r)),
  emptiest: (r) => (a, b) => share(lineOf(a, r)) - share(lineOf(b, r)),
  'most free': (r) => (a, b) => lineOf(b, r).a - lineOf(b, r).q - (lineOf(a, r).a - lineOf(a, r).q),
  name: () => () => 0,
};

const settings = { resource: 'memory', order: 'fullest', only: 'all', filter: '' };

export function fleetView(state) {
  const tiles = h('dl', { class: 'tiles' });
  const resources = h('select', { id: 'resource', onchange: () => set('resource', resources.value) });
  const order = h('select', { id: 'order', onchange: () => set('order', order.value) },
    Object.keys(orders).map((o) => h('option', { value: o, selected: o === settings.order }, o)));
  const only = h('select', { id: 'only', onchange: () => set('only', only.value) },
    ['all', 'in trouble', 'cordoned', 'tainted'].map((o) => h('option', { value: o, selected: o === settings.only }, o)));
  const filter = h('input', {
    id: 'filter', type: 'search', value: settings.filter, placeholder: 'part of the name', autocomplete: 'off',
    spellcheck: 'false', oninput: () => set('filter', filter.value),
  });
  const skyline = h('canvas', { id: 'skyline', role: 'img', onclick: (e) => jump(e) });
  const shown = h('p', { class: 'quiet', role: 'status', id: 'shown' });
  const rows = h('div', {
    class: 'rows', role: 'listbox', tabindex: 0, 'aria-label': 'Nodes', id: 'nodes', onkeydown: (e) => key(e),
    onfocus: () => { if (chosen < 0) choose(0); },
  });
  const element = h('div', {}, h('h2', { class: 'hidden' }, 'Fleet'), tiles,
    h('div', { class: 'controls' }, h('label', {}, 'Resource', resources), h('label', {}, 'Order', order),
      h('label', {}, 'Show', only), h('label', {}, 'Name', filter)),
    h('div', { class: 'card' }, skyline, shown, rows));

  let list = []; // the rows that are shown, in order
  let chosen = -1;
  let due = false;

  function set(name, value) {
    settings[name] = value;
    chosen = -1;
    sort();
  }

  function sort() {
    const text = settings.filter.toLowerCase();
    const keep = {
      all: () => true, 'in trouble': trouble, cordoned: (r) => r.c, tainted: (r) => r.t > 0,
    }[settings.only];
    const name = chosen >= 0 && list[chosen] ? list[chosen].n : null;
    list = [...state.rows.values()].filter((r) => keep(r) && (!text || r.n.toLowerCase().includes(text)));
    const by = orders[settings.order](settings.resource);
    list.sort((a, b) => by(a, b) || (a.n < b.n ? -1 : 1));
    if (name !== null) chosen = list.findIndex((r) => r.n === name);
    draw();
  }

  const rowHeight = () => (matchMedia('(max-width: 48rem)').matches ? 3.6 : 2.25) *
    parseFloat(getComputedStyle(document.documentElement).fontSize);

  // draw makes elements of the rows on the screen, and a few more.
  function draw() {
    const height = rowHeight();
    rows.style.height = Math.max(1, list.length * height) + 'px';
    const top = rows.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - 5);
    const last = Math.min(list.length, Math.ceil((innerHeight - top) / height) + 5);
    const out = [];
    for (let i = first; i < last; i++) out.push(rowOf(list[i], i, height));
    if (chosen >= 0 && (chosen < first || chosen >= last) && list[chosen]) out.push(rowOf(list[chosen], chosen, height));
    put(rows, out);
    if (chosen >= 0) rows.setAttribute('aria-activedescendant', 'row-' + chosen);
    else rows.removeAttribute('aria-activedescendant');
  }

  function rowOf(row, i, height) {
    const line = lineOf(row, settings.resource);
    const bad = row.s !== 'ready';
    const words = [row.s === 'unknown' ? 'silent' : row.s];
    if (row.c) words.push('cordoned');
    words.push(...(row.p || []));
    if (row.t && !row.c) words.push(count(row.t, 'taint', 'taints'));
    const element = h('a', {
      class: 'row', role: 'option', id: 'row-' + i, href: nodeLink(row.n), tabindex: -1, 'aria-selected': i === chosen,
      'aria-posinset': i + 1, 'aria-setsize': list.length, 'data-node': row.n,
    },
    h('span', { class: 'name' }, row.n), loadLine(line),
    h('span', { class: 'num' }, `${amount(line.r, line.q)} of ${amount(line.r, line.a)} (${percent(line.q, line.a)})`),
    h('span', { class: 'state ' + (bad || row.p ? 'bad' : row.c || row.t ? 'warn' : 'quiet') }, words.join(', ')));
    element.style.top = i * height + 'px';
    return element;
  }

  function choose(i) {
    chosen = Math.max(0, Math.min(list.length - 1, i));
    const height = rowHeight();
    const top = rows.getBoundingClientRect().top + chosen * height;
    if (top < 0) scrollBy(0, top - height);
    else if (top + height > innerHeight) scrollBy(0, top + 2 * height - innerHeight);
    draw();
  }

  function key(e) {
    const page = Math.max(1, Math.floor(innerHeight / rowHeight()) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -list.length, End: list.length }[e.key];
    if (step) choose((chosen < 0 && step > 0 ? -1 : chosen) + step);
    else if (e.key === 'Enter' && list[chosen]) location.hash = nodeLink(list[chosen].n);
    else return;
    e.preventDefault();
  }

  // sky draws each node as a column; if there are more nodes than pixels, a column is the fullest of several.
  function sky() {
    const width = skyline.clientWidth;
    const height = skyline.clientHeight;
    const dots = devicePixelRatio || 1;
    skyline.width = width * dots;
    skyline.height = height * dots;
    const to = skyline.getContext('2d');
    to.scale(dots, dots);
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    const [fill, room, mark, text] = ['--fill', '--room', '--mark', '--text'].map(colour);
    const n = list.length;
    const columns = Math.min(n, Math.floor(width));
    const full = height * 0.2; // where a node is full
    for (let x = 0; x < columns; x++) {
      let most = 0;
      let bad = false;
      for (let i = Math.floor((x * n) / columns); i < Math.floor(((x + 1) * n) / columns); i++) {
        most = Math.max(most, share(lineOf(list[i], settings.resource)));
        bad = bad || list[i].s !== 'ready';
      }
      const left = Math.floor((x * width) / columns);
      const wide = Math.max(1, Math.floor(((x + 1) * width) / columns) - left - (width / columns > 4 ? 1 : 0));
      const tall = Math.min(1.25, most) * (height - full);
      to.fillStyle = room;
      to.fillRect(left, full, wide, height - full);
      to.fillStyle = most > 1 || bad ? mark : fill;
      to.fillRect(left, height - tall, wide, tall);
      if (bad) to.fillRect(left, height - 4, wide, 4);
    }
    to.fillStyle = text;
    to.fillRect(0, full - 1, width, 2);
    const over = list.filter((r) => share(lineOf(r, settings.resource)) > 1).length;
    skyline.setAttribute('aria-label', `${settings.resource} of ${count(n, 'node', 'nodes')}, in the order of the list: ` +
      `each column is a node, the line is where it is full; ${over} are over it`);
    skyline.title = skyline.getAttribute('aria-label');
  }

  function jump(e) {
    const i = Math.floor((e.offsetX / skyline.clientWidth) * list.length);
    if (list[i]) location.hash = nodeLink(list[i].n);
  }

  function sums() {
    const all = [...state.rows.values()];
    const tile = (name, text, small) => h('div', { class: 'tile' }, h('dt', {}, name), h('dd', {}, text, h('small', {}, small)));
    const of = (r) => {
      let requested = 0;
      let allocatable = 0;
      for (const row of all) {
        const line = lineOf(row, r);
        requested += line.q;
        allocatable += line.a;
      }
      return tile(r, percent(requested, allocatable), `${amount(r, requested)} of ${amount(r, allocatable)} requested`);
    };
    const ready = all.filter((r) => r.s === 'ready').length;
    const bad = all.filter(trouble).length;
    const waiting = state.waiting;
    put(tiles, tile('nodes', String(all.length), `${ready} ready, ${bad} in trouble`), of('cpu'), of('memory'), of('pods'),
      tile('waiting pods', waiting ? String(waiting.pods) : '–', waiting && waiting.groups.length
        ? count(waiting.groups.length, 'reason', 'reasons') : 'none lacks anything'));
    const names = new Set(['cpu', 'memory', 'pods']);
    for (const row of all) for (const l of row.l) names.add(l.r);
    if (resources.childElementCount !== names.size) {
      put(resources, [...names].map((n) => h('option', { value: n, selected: n === settings.resource }, n)));
    }
    const text = count(list.length, 'node', 'nodes') + (list.length === all.length ? '' : ` of ${all.length}`);
    if (shown.textContent !== text) shown.textContent = text;
  }

  function update(what) {
    if (!(what.all || what.rows || what.waiting) || due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      sort();
      sums();
      sky();
    });
  }

  const again = () => draw();
  const resized = () => update({ all: true });
  addEventListener('scroll', again, { passive: true });
  addEventListener('resize', resized);
  return {
    element,
    title: 'Fleet',
    update,
    close: () => {
      removeEventListener('scroll', again);
      removeEventListener('resize', resized);
    },
  };
}
