// The pods that wait for a node, in groups by what they lack.
import { h, put, count, notes, podLink, time } from './dom.js';
import { some, verdict } from './verdict.js';

export function waitingView(state) {
  const body = h('div');
  const opened = new Set();
  const element = h('div', {}, h('h2', {}, 'Waiting pods'), body);

  function update(what) {
    if (!(what.all || what.waiting)) return;
    const w = state.waiting;
    if (!w) {
      put(body, h('p', { class: 'quiet' }, 'The core judges …'));
      return;
    }
    const head = h('p', { role: 'status', id: 'waits' }, w.pods ? `${count(w.pods, 'pod waits', 'pods wait')}; ${count(w.nodes, 'node', 'nodes')}. ` +
      (w.pods > 1 ? 'Each is judged alone: what lets one in need not have room for all.' : '') : 'No pod waits.');
    put(body, head, w.groups.map(group), notes(w));

    function group(g) {
      const link = (name) => h('a', { href: podLink(name) }, name);
      const key = g.summary + (g.notJudged || '');
      return h('section', { class: 'card group', 'data-group': g.pods[0] },
        h('h3', {}, h('span', { class: 'count' }, g.count), g.count === 1 ? ' pod' : ' pods', ', since ' + time(g.since)),
        verdict(g, w.nodes),
        g.unspoken ? h('p', { class: 'warn' }, `No scheduler has said anything about ${g.unspoken} of ${g.count}: is the one that they name running?`) : null,
        h('details', { open: g.count <= 3 || opened.has(key), ontoggle: (e) => (e.target.open ? opened.add(key) : opened.delete(key)) },
          h('summary', {}, count(g.count, 'pod', 'pods')), h('p', {}, some(g.pods, g.count, link))));
    }
  }
  return { element, title: 'Waiting pods', update };
}
