// Memory over time against the thresholds, with evictions marked, and a threshold that can be dragged. The scale is
// that of square roots: thresholds are often a hundredth of the memory.
import { s, bytes, time } from './dom.js';

const left = 64;
const right = 12;
const top = 18;
const bottom = 24;

export function chart(tried) {
  const svg = s('svg', { class: 'chart', role: 'group', 'aria-label': 'Available memory over time' });
  let data = { samples: [], thresholds: [], marks: [], capacity: 0, value: 0 };
  let dragging = false;
  const grip = s('circle', { class: 'grip', r: 9, tabindex: 0, role: 'slider', id: 'grip', 'aria-label': 'Tried threshold of memory.available' });

  const size = () => ({ w: svg.clientWidth || 600, h: svg.clientHeight || 240 });
  const yOf = (v) => top + (size().h - top - bottom) * (1 - Math.sqrt(Math.max(0, Math.min(1, v / (data.capacity || 1)))));
  const vOf = (y) => {
    const part = 1 - (y - top) / (size().h - top - bottom);
    return Math.max(0, Math.min(1, part)) ** 2 * data.capacity;
  };
  // whole rounds to a mebibyte: thresholds are configured so.
  const whole = (v) => Math.max(1, Math.round(v / 2 ** 20)) * 2 ** 20;

  function move(v) {
    data.value = Math.min(whole(v), data.capacity);
    draw();
    tried(data.value);
  }
  grip.addEventListener('pointerdown', (e) => {
    dragging = true;
    grip.setPointerCapture(e.pointerId);
  });
  grip.addEventListener('pointermove', (e) => {
    if (dragging) move(vOf(e.clientY - svg.getBoundingClientRect().top));
  });
  for (const end of ['pointerup', 'pointercancel']) grip.addEventListener(end, () => { dragging = false; });
  grip.addEventListener('keydown', (e) => {
    const by = { ArrowUp: 1.05, ArrowRight: 1.05, ArrowDown: 1 / 1.05, ArrowLeft: 1 / 1.05, PageUp: 1.5, PageDown: 1 / 1.5 }[e.key];
    if (by) move(by > 1 ? Math.max(data.value * by, data.value + 2 ** 20) : data.value * by);
    else if (e.key === 'Home') move(0);
    else if (e.key === 'End') move(data.capacity / 2);
    else return;
    e.preventDefault();
  });

  function draw() {
    const { w, h } = size();
    svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
    const focused = document.activeElement === grip;
    const out = [];
    for (const part of [0.01, 0.05, 0.25, 0.5, 1]) {
      const y = yOf(part * data.capacity);
      out.push(s('line', { class: 'grid', x1: left, x2: w - right, y1: y, y2: y }),
        s('text', { x: left - 6, y: y + 4, 'text-anchor': 'end' }, bytes(Math.round(part * data.capacity))));
    }
    const list = data.samples;
    const times = list.map((p) => +new Date(p.t)).concat(data.marks.map((m) => +new Date(m.t)));
    const until = Math.max(Date.now(), ...times);
    const since = Math.min(until - 120000, ...times.filter((t) => t > until - 3600000));
    const xOf = (t) => left + ((w - left - right) * (t - since)) / (until - since);
    if (list.length) {
      const points = list.map((p) => `${xOf(+new Date(p.t)).toFixed(1)},${yOf(p.a).toFixed(1)}`);
      const first = xOf(+new Date(list[0].t));
      const last = xOf(+new Date(list[list.length - 1].t));
      out.push(s('path', { class: 'area', d: `M${first},${yOf(0)}L${points.join('L')}L${last},${yOf(0)}Z` }),
        s('path', { class: 'curve', d: 'M' + points.join('L') }));
    }
    for (const t of data.thresholds) {
      const y = yOf(t.bytes);
      out.push(s('line', { class: t.grace ? 'soft' : 'hard', x1: left, x2: w - right, y1: y, y2: y }),
        s('text', { x: left + 6, y: y - 4 }, `${t.grace ? 'soft' : 'hard'} threshold ${t.text}${t.grace ? `, for ${t.grace}` : ''}`));
    }
    for (const m of data.marks) {
      const x = xOf(+new Date(m.t));
      if (x < left) continue;
      const dot = s('circle', { class: 'evicted-dot', cx: x, cy: m.signal === 'memory.available' ? yOf(m.available) : top, r: 4 },
        s('title', {}, `${time(m.t)}: evicted ${m.pods.join(', ')}: ${m.text}`));
      out.push(s('line', { class: 'evicted', x1: x, x2: x, y1: top, y2: yOf(0) }), dot);
    }
    out.push(s('text', { x: left + 6, y: top - 6 }, 'available memory, on a scale of square roots'));
    out.push(s('text', { x: left, y: h - 6 }, time(new Date(since).toISOString()).slice(-12, -4) || ''),
      s('text', { x: w - right, y: h - 6, 'text-anchor': 'end' }, 'now'));
    const y = yOf(data.value);
    out.push(s('line', { class: 'tried', x1: left, x2: w - right, y1: y, y2: y }));
    grip.setAttribute('cx', w - right - 10);
    grip.setAttribute('cy', y);
    grip.setAttribute('aria-valuemin', 0);
    grip.setAttribute('aria-valuemax', data.capacity);
    grip.setAttribute('aria-valuenow', data.value);
    grip.setAttribute('aria-valuetext', bytes(data.value));
    out.push(s('text', { class: 'grip-text', x: w - right - 26, y: y - 6, 'text-anchor': 'end' }, `what if ${bytes(data.value)}`));
    svg.replaceChildren(...out, grip);
    if (focused) grip.focus();
  }

  return {
    element: svg,
    draw,
    show(next) {
      data = { ...data, ...next };
      draw();
    },
    value: () => data.value,
  };
}
