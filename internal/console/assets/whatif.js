// What if: a pod that nobody created. The core answers while the manifest is written.
import { h, ask, card, put, count, notes, nodeLink } from './dom.js';
import { node, verdict } from './verdict.js';

const kept = { manifest: '', copies: 1 };

const manifest = (cpu, memory, selector) => `apiVersion: v1
kind: Pod
metadata:
  name: what-if
spec:
  containers:
  - name: app
    image: none
    resources:
      requests: {cpu: "${cpu}", memory: ${memory}}
` + (selector ? `  nodeSelector: {${selector}}\n` : '');

export function whatIfView(state) {
  const text = h('textarea', { id: 'manifest', spellcheck: 'false', 'aria-label': 'Manifest of the pod', oninput: () => want() });
  const cpu = h('input', { id: 'cpu', size: 6, value: '500m', oninput: () => write() });
  const memory = h('input', { id: 'memory', size: 6, value: '256Mi', oninput: () => write() });
  const selector = h('input', { id: 'selector', size: 18, placeholder: 'disk: ssd', oninput: () => write() });
  const copies = h('input', { id: 'copies', type: 'number', min: 1, max: 100, value: kept.copies, oninput: () => want() });
  const answer = card('The core\'s answer');
  answer.body.id = 'pod-answer';
  answer.body.setAttribute('aria-live', 'polite');
  const choose = h('select', { id: 'threshold-node', onchange: () => { if (choose.value) location.hash = nodeLink(choose.value); } });
  const element = h('div', {}, h('h2', {}, 'What if there was one more pod'),
    h('div', { class: 'two' }, h('section', { class: 'card', 'aria-label': 'The pod' }, h('div', { class: 'controls' }, h('label', {}, 'CPU', cpu),
      h('label', {}, 'Memory', memory), h('label', {}, 'Node selector', selector), h('label', {}, 'Copies', copies)), text,
    h('p', { class: 'quiet' }, 'Nothing is created. Any manifest of a pod can be pasted here.')), answer.element),
    h('section', { class: 'card', 'aria-label': 'Thresholds' }, h('h3', {}, 'What if an eviction threshold was another'),
      h('p', {}, 'On the page of a node, drag the dotted line: ', choose)));
  text.value = kept.manifest || manifest(cpu.value, memory.value, '');

  let next = null;
  let asking = false;

  function write() {
    text.value = manifest(cpu.value.trim(), memory.value.trim(), selector.value.trim());
    want();
  }

  async function want() {
    kept.manifest = text.value;
    kept.copies = Number(copies.value) || 0;
    next = { manifest: kept.manifest, copies: kept.copies };
    if (asking) return;
    asking = true;
    while (next) {
      const question = next;
      next = null;
      try {
        show(await ask('try/pod', question));
      } catch (e) {
        answer.set(h('p', { class: 'bad' }, e.message));
      }
    }
    asking = false;
  }

  function show(a) {
    const out = [];
    if (a.notJudged) {
      out.push(h('p', { class: 'warn' }, `Not judged: ${a.notJudged}.`));
    } else {
      const all = a.fit === a.copies;
      out.push(h('p', { class: 'answer ' + (all ? 'good' : 'bad') }, h('strong', {}, a.copies === 1
        ? (all ? 'It fits.' : 'It fits nowhere.') : `${a.fit} of ${a.copies} fit.`)));
      if (a.placed) {
        out.push(h('p', {}, a.copies === 1 ? 'It would be placed on ' : 'They would be placed on ', a.placed.slice(0, 12).flatMap((p, i) =>
          [i ? ', ' : '', node(p.node), p.count > 1 ? ` (${p.count})` : '']), a.placed.length > 12 ? ` and ${count(a.placed.length - 12, 'more node', 'more nodes')}` : '', '.'));
      }
      if (!all && a.fit) out.push(h('p', {}, h('b', {}, 'The next one:')));
      out.push(verdict(a, state.rows.size));
    }
    answer.set(out, notes(a));
  }

  function update(what) {
    if (what.all || what.rows) {
      const names = [...state.rows.keys()].sort();
      if (choose.childElementCount !== names.length + 1) {
        put(choose, h('option', { value: '' }, 'choose a node'), names.map((n) => h('option', { value: n }, n)));
      }
    }
    if (what.all || what.rows || what.waiting) want();
  }
  return { element, title: 'What if', update };
}
