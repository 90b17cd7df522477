// What became of a pod.
import { h, card, put, notes, table, time } from './dom.js';
import { node, verdict } from './verdict.js';

export function podView(state, namespace, name) {
  const pod = `${namespace}/${name}`;
  const body = h('div', {}, h('p', { class: 'quiet' }, 'Asking …'));
  const element = h('div', {}, h('h2', {}, 'Pod ' + pod), body);

  function update(what) {
    if (!(what.all || what.pod) || !state.pod) return;
    const { about: a, error } = state.pod;
    if (error) {
      put(body, h('p', { class: 'bad' }, error));
      return;
    }
    const out = [h('p', { role: 'status', id: 'pod-state' }, stateOf(a))];
    if (a.message) out.push(h('p', {}, a.message));
    if (a.verdict) out.push(card('Why it waits', verdict(a.verdict, state.rows.size)).element);
    out.push(card('Story', story(a.story)).element);
    if (a.containers) {
      out.push(card('Containers', table(['Name', 'Ready', { text: 'Restarts', num: true }, 'State', 'Before'],
        a.containers.map((c) => [c.name, c.ready ? 'yes' : 'no', String(c.restarts), c.state, c.last || '']))).element);
    }
    if (a.conditions) out.push(card('Conditions', conditions(a.conditions)).element);
    put(body, out, notes(a));
  }

  function stateOf(a) {
    if (!a.found) return 'It is not in the API any more.';
    if (!a.node) return `It waits for a node since ${time(a.created)}; its scheduler is ${a.scheduler}.`;
    return h('span', {}, 'On node ', node(a.node), `: ${[a.phase, a.reason].filter(Boolean).join(', ')}.`,
      a.deleting ? ` Its deletion was requested; it must have ended by ${time(a.deleting)}.` : '');
  }
  return { element, title: pod, looks: { pod }, update };
}

export function story(moments) {
  if (!moments || !moments.length) return h('p', { class: 'quiet' }, 'Nothing is known.');
  return h('ol', { class: 'story' }, moments.map((m) => h('li', {}, h('time', { datetime: m.time }, time(m.time)),
    h('span', { class: 'from' }, m.from), m.what,
    m.more ? h('span', { class: 'quiet' }, ` (the same ${m.more} more times, until ${time(m.until)})`) : null)));
}

export function conditions(list) {
  return table(['Condition', 'Status', 'Since', 'Reason', 'Message'],
    list.map((c) => [c.type, c.status, time(c.since), c.reason || '', c.message || '']));
}
