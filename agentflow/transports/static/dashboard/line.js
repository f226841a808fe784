/** A run's events as marbles on a line: those that say most, from its input to its end. */

import { h, setText } from '../shared/dom.js';
import { span } from '../shared/i18n.js';
import { t } from './texts.js';

const KINDS = { input: 'begin', rollback: 'void', tool_complete: 'tool', tool_error: 'cross', approval: 'wait', question: 'wait', resolved: 'begin-wait', model_complete: 'model', summary: 'model', warning: 'wait', final: 'end', failed: 'end-cross', cancelled: 'end-dash' };
const MOST = 400; // marbles

/** @param {{go: (seq: number) => void}} run */
export function lineView(run) {
  const cut = h('span', { class: 'faint' });
  const head = h('div', { class: 'line-head' }, h('span', { class: 'faint' }, t('line')), cut);
  const node = h('div', { class: 'line', 'aria-hidden': 'true', on: { click: (event) => event.target.dataset.seq && run.go(Number(event.target.dataset.seq)) } });
  let drawn = '';
  return { head, node, update };

  function update({ events, chains }, axis, chosen) {
    setText(cut, axis.cut > 0 ? t('line.cut', { span: span(axis.cut) }) : '');
    const told = `${events.length} ${axis.working} ${axis.cut} ${chosen}`;
    if (told === drawn) return;
    drawn = told;
    const said = events.filter((event) => KINDS[event.type] && (event.type === 'tool_error' || event.type === 'tool_complete' || chains.size === 1 || event.chain_id === event.run_id));
    const marbles = said.slice(-MOST).map((event) => {
      const marble = h('i', { 'data-kind': KINDS[event.type], 'data-seq': event.seq, title: `${event.type} · ${event.seq}`, class: event.seq === chosen ? 'is-chosen' : '' });
      marble.style.setProperty('--at', axis.at(Date.parse(event.ts)));
      return marble;
    });
    node.replaceChildren(...marbles);
  }
}
