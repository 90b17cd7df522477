// A node: its load lines, memory against thresholds, who has which CPU, its pods, and what keeps pods off it.
import { h, ask, card, put, amount, bytes, count, loadLine, notes, percent, podLink, table, time } from './dom.js';
import { chart } from './chart.js';
import { conditions, story } from './pod.js';
import { some } from './verdict.js';

const link = (name) => (name.includes('/') ? h('a', { href: podLink(name) }, name) : name);

export function nodeView(state, name) {
  const head = h('p', { role: 'status', id: 'node-state' }, 'Asking …');
  const loads = card('Load lines');
  const memory = card('Memory against its thresholds');
  const map = card('NUMA nodes and CPUs');
  const pods = card('Pods');
  const about = card('Conditions');
  const off = card('What keeps waiting pods off');
  const past = card('What the lifecycle controller decided');
  const rest = h('div');
  const element = h('div', {}, h('h2', {}, 'Node ' + name), head, memory.element,
    h('div', { class: 'two' }, loads.element, map.element), pods.element,
    h('div', { class: 'two' }, about.element, off.element), past.element, rest);

  const trial = thresholdTrial(name, (v) => drawn.show({ value: v }));
  const drawn = chart((v) => trial.set(v));
  const says = h('p', { class: 'quiet' });
  put(memory.body, drawn.element, says, trial.element);

  function update(what) {
    const row = state.rows.get(name);
    if ((what.all || what.rows) && row) showLoads(row);
    if (!row && state.rows.size) put(head, h('span', { class: 'bad' }, 'The API has no node of this name.'));
    if (!(what.all || what.node) || !state.node) return;
    const n = state.node;
    showMemory(n, row);
    showMap(n);
    if (n.pods) showPods(n.pods, row);
    if (n.about) showAbout(n.about, row);
  }

  function showLoads(row) {
    put(head, h('b', { class: row.s === 'ready' ? 'good' : 'bad' }, row.s === 'unknown' ? 'silent' : row.s),
      row.c ? ', cordoned' : '', (row.p || []).map((p) => h('b', { class: 'bad' }, ', ' + p)),
      row.t ? `, ${count(row.t, 'taint', 'taints')}` : '', row.o ? ', run by plimsoll\'s agent' : ', run by a kubelet');
    loads.set(h('div', { class: 'loads' }, row.l.flatMap((l) => [
      h('div', {}, l.r), loadLine(l), h('div', { class: 'num' }, `${amount(l.r, l.q)} of ${amount(l.r, l.a)} (${percent(l.q, l.a)})`),
      h('div', { class: 'detail' }, `capacity ${amount(l.r, l.c)} − reserved ${amount(l.r, l.c - l.a)} = allocatable ${amount(l.r, l.a)}; ` +
        `free ${amount(l.r, l.a - l.q)}`),
    ])));
  }

  function showMemory(n, row) {
    const last = n.samples[n.samples.length - 1];
    const line = row && row.l.find((l) => l.r === 'memory');
    const capacity = last ? last.c : line ? line.c : 0;
    const hard = (n.thresholds || []).find((t) => !t.grace);
    const next = { samples: n.samples, thresholds: n.thresholds || [], marks: n.marks || [], capacity };
    if (!trial.touched() && capacity) {
      next.value = hard ? hard.bytes : 100 * 2 ** 20;
      trial.begin(next.value);
    }
    drawn.show(next);
    const parts = [];
    if (last) parts.push(`${bytes(last.a)} of ${bytes(last.c)} available`);
    if (last && last.s >= 0) parts.push(`some process waited for memory ${last.s.toFixed(1)}% of the last 10 s`);
    if (n.marks) parts.push(count(n.marks.length, 'eviction', 'evictions') + ' in the journal');
    if (n.problem) parts.push(n.problem);
    const text = parts.join('; ') + (parts.length ? '.' : '');
    if (says.textContent !== text) says.textContent = text;
  }

  function showMap(n) {
    if (!n.map) {
      map.set(h('p', { class: 'quiet' }, n.noMap || 'Asking …'));
      return;
    }
    map.set(mapOf(n.map));
  }

  function showPods(list, row) {
    const lines = row ? row.l.map((l) => l.r).filter((r) => r !== 'pods') : ['cpu', 'memory'];
    const used = lines.filter((r) => list.some((p) => p.requests[r]));
    pods.set(h('p', {}, count(list.length, 'pod', 'pods')), list.length ? table(
      ['Pod', 'State', { text: 'Restarts', num: true }, { text: 'Priority', num: true }, ...used.map((r) => ({ text: r, num: true }))],
      list.slice(0, 250).map((p) => [link(p.pod), (p.leaving ? 'ends' : p.phase) + (p.ready ? ', ready' : ''), String(p.restarts),
        String(p.priority), ...used.map((r) => (p.requests[r] ? amount(r, p.requests[r]) : ''))])) : null);
  }

  function showAbout(a) {
    about.set(conditions(a.conditions), a.taints ? table(['Taint', 'Since', 'Because'],
      a.taints.map((t) => [t.taint, time(t.since), t.from || ''])) : null);
    off.set(a.waiting ? h('div', {}, h('p', {}, `Of ${count(a.waiting, 'waiting pod', 'waiting pods')}, ${a.takes || 0} would fit here, each alone.`),
      (a.keptOff || []).map((m) => h('p', {}, h('b', {}, count(m.count, 'pod', 'pods')), ` ${m.plugin}: ${m.reason} – `,
        some(m.pods, m.count, link)))) : h('p', { class: 'quiet' }, 'No pod waits in the cluster.'));
    past.element.hidden = !a.story || !a.story.length;
    past.set(story(a.story));
    put(rest, notes(a));
  }

  const resized = () => drawn.draw();
  addEventListener('resize', resized);
  return { element, title: name, looks: { node: name }, update, close: () => removeEventListener('resize', resized) };
}

// letters name the owners on the map: A to Z, then A1 and so on.
const letters = (i) => String.fromCharCode(65 + (i % 26)) + (i >= 26 ? Math.floor(i / 26) : '');

// tint gives each owner a colour; the letter says the same without it.
function tint(element, i) {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark';
  element.style.background = `hsl(${(i * 137 + 200) % 360} 60% ${dark ? 26 : 82}%)`;
  return element;
}

export function mapOf(m) {
  const swatch = (i) => tint(h('span', { class: 'swatch' }, letters(i)), i);
  const owners = h('ul', { class: 'legend' }, m.owners.map((o, i) => h('li', {}, swatch(i), ' ', link(o))),
    h('li', {}, h('span', { class: 'swatch cpu free' }, '·'), ' shared, can be assigned'),
    h('li', {}, h('span', { class: 'swatch cpu shared' }, '–'), ' never assigned'));
  return h('div', {}, m.nodes.map((n) => {
    const assigned = (n.assigned || []).map((a) => {
      const part = tint(h('span', { title: `${m.owners[a.owner]}: ${bytes(a.bytes)}` +
        (a.nodes ? ` on nodes ${a.nodes.join(', ')} together` : '') }, letters(a.owner)), a.owner);
      part.style.width = (100 * (a.nodes ? a.bytes / a.nodes.length : a.bytes)) / Math.max(1, n.memory) + '%';
      return part;
    });
    return h('section', { class: 'numa', 'aria-label': 'NUMA node ' + n.id },
      h('b', {}, 'NUMA node ' + n.id), h('span', { class: 'quiet' }, ` distances ${n.distances.join(' ')}`),
      h('ul', { class: 'cores', 'aria-label': 'CPUs, by core' }, n.cores.map((core) => h('li', { class: 'core', title: 'socket ' + core.socket },
        core.cpus.map((c) => {
          const who = (c.owners || []).map((o) => m.owners[o]).join(', ');
          const cell = h('span', { class: 'cpu ' + c.use, title: `CPU ${c.id}: ${who || (c.use === 'free' ? 'shared, can be assigned' : 'never assigned')}`,
            'data-cpu': c.id }, h('b', {}, (c.owners || []).map(letters).join('') || (c.use === 'free' ? '·' : '–')), c.id);
          return c.owners ? tint(cell, c.owners[0]) : cell;
        })))),
      n.memory ? h('div', {}, h('div', { class: 'stack', role: 'img', 'aria-label': `memory: ${bytes(n.memory)}, of which ` +
        `${bytes((n.assigned || []).reduce((sum, a) => sum + a.bytes, 0))} are assigned` }, assigned),
      h('small', { class: 'quiet' }, `memory ${bytes(n.memory)}` + (n.free ? `, ${bytes(n.free)} can be assigned` : ''))) : null,
      n.devices ? h('p', {}, 'Devices: ', n.devices.map((d) => h('span', {}, d.owner >= 0 ? [swatch(d.owner), ' '] : '', `${d.resource} ${d.id} `))) : null);
  }), owners);
}

// bytesOf reads a quantity of bytes; NaN: it is none, or a percentage.
function bytesOf(text) {
  const m = /^([\d.]+)(Ki|Mi|Gi|Ti|k|M|G|T|)$/.exec(text);
  const by = { '': 1, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  return m ? Number(m[1]) * by[m[2]] : NaN;
}

// thresholdTrial asks what another hard threshold would do, and shows the core's answer.
// typed is called with the bytes of a threshold of memory.available that was typed.
export function thresholdTrial(node, typed) {
  const value = h('input', { id: 'threshold', size: 8, spellcheck: 'false', autocomplete: 'off', oninput: () => type() });
  const signal = h('select', { id: 'signal', onchange: () => type() },
    ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'pid.available'].map((x) => h('option', {}, x)));
  const answer = h('div', { class: 'answer', 'aria-live': 'polite', id: 'threshold-answer' });
  const element = h('div', {}, h('div', { class: 'controls' }, h('b', {}, 'What if the hard threshold of'), signal,
    h('label', {}, 'was', value), h('span', { class: 'quiet' }, 'Type it, or drag the dotted line.')), answer);
  let next = null; // what to ask after the question that is under way
  let asking = false;
  let touched = false;

  function type() {
    const n = bytesOf(value.value.trim());
    if (signal.value === 'memory.available' && n > 0) typed(n);
    want(signal.value, value.value);
  }

  async function want(of, text) {
    touched = true;
    next = { node, signal: of, value: text.trim() };
    if (asking) return;
    asking = true;
    while (next) {
      const question = next;
      next = null;
      try {
        show(await ask('try/threshold', question), question);
      } catch (e) {
        put(answer, h('p', { class: 'bad' }, e.message));
      }
    }
    asking = false;
  }

  function show(a, question) {
    const out = [];
    const shed = a.shed;
    if (shed) {
      const met = shed.thresholdsMet.filter((m) => m.acts);
      if (shed.victims.length) {
        out.push(h('p', { class: 'bad' }, h('strong', {}, `${count(shed.victims.length, 'pod', 'pods')} would be evicted now: `),
          some(shed.victims.slice(0, 8), shed.victims.length, link)));
      } else {
        out.push(h('p', { class: 'good' }, h('strong', {}, 'No pod would be evicted now.'),
          met.length ? ' The threshold is met.' : ''));
      }
    }
    if (a.resource && a.after) {
      out.push(h('p', {}, `${a.resource} allocatable ${amount(a.resource, a.allocatable)}` +
        (a.allocatable === a.was ? ', as now' : ` instead of ${amount(a.resource, a.was)}`) +
        `; its pods request ${amount(a.resource, a.requested)}: `,
      a.free < 0 ? h('b', { class: 'bad' }, `${amount(a.resource, -a.free)} more than there is.`) : `${amount(a.resource, a.free)} free.`));
      if (a.waiting) {
        out.push(h('p', {}, `Of ${count(a.waiting, 'waiting pod', 'waiting pods')}, ${a.takes.length} would fit here` +
          (a.takes.length ? ': ' : '.'), some(a.takes.slice(0, 5), a.takes.length, link)));
      }
    }
    for (const v of shed ? shed.evictions.slice(0, 3) : []) out.push(h('p', { class: 'quiet' }, `${v.pod}: ${v.message}`));
    const known = new Set(a.before ? a.before.warnings : []);
    for (const w of [...a.after.warnings.filter((x) => !known.has(x)), ...a.notes]) out.push(h('p', { class: 'quiet' }, w));
    put(answer, out);
    answer.dataset.value = question.value;
  }

  return {
    element,
    touched: () => touched,
    begin(v) { value.value = Math.round(v / 2 ** 20) + 'Mi'; },
    set(v) {
      value.value = Math.round(v / 2 ** 20) + 'Mi';
      signal.value = 'memory.available';
      want('memory.available', value.value);
    },
  };
}
