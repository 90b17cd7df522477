// What the core says about a waiting pod: counts by reason, the nearest miss, what would let it in.
import { h, count, nodeLink } from './dom.js';

export const node = (name) => h('a', { href: nodeLink(name) }, name);

export function some(list, total, each = node) {
  const out = list.flatMap((name, i) => (i ? [', ', each(name)] : [each(name)]));
  if (total > list.length) out.push(` and ${total - list.length} more`);
  return out;
}

export function verdict(v, nodes) {
  if (v.notJudged) return h('p', {}, 'Not judged: ', v.notJudged, '.');
  const out = [];
  if (v.gates) out.push(h('p', {}, 'Not scheduled before these gates are removed: ' + v.gates.join(', ') + '.'));
  if (v.feasible > 0) {
    out.push(h('p', { class: 'good' }, `Fits now on ${count(v.feasible, 'node', 'nodes')}: `, some(v.feasibleNodes || [], v.feasible)));
  } else if (v.summary) out.push(h('p', {}, v.summary));
  if (v.feasible === 0) {
    for (const r of v.reasons || []) {
      const bar = h('span');
      bar.style.width = Math.max(1, (100 * r.count) / Math.max(nodes, r.count, 1)) + '%';
      out.push(h('div', { class: 'reason' }, h('div', { class: 'bar', 'aria-hidden': 'true' }, bar),
        h('div', {}, h('b', {}, count(r.count, 'node', 'nodes')), ` ${r.plugin}: ${r.reason} – `, some(r.nodes || [], r.count))));
    }
  }
  if (v.nearest) {
    const n = v.nearest;
    const short = (n.short || []).map((x) => `; ${x.resource}: ${x.asked} requested, ${x.free} free of ${x.allocatable}`).join('');
    out.push(h('p', {}, h('b', {}, 'Nearest: '), node(n.node), `: ${(n.reasons || []).join('; ')}${short}`,
      n.detail ? ` (${n.detail})` : ''));
  }
  if (v.changes) {
    out.push(h('p', {}, h('b', {}, 'Any one of these lets it in, the smallest first:')),
      h('ul', { class: 'changes' }, v.changes.map((c) => h('li', {}, c.text))));
  } else if (v.feasible === 0 && v.reasons) {
    out.push(h('p', {}, 'No change of the pod, of a node or of a budget was found that lets it in.'));
  }
  return h('div', {}, out);
}
