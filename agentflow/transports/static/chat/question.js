/** A question of the agent: options to choose from, or a field. */

import { drawing, h, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { QUESTION } from '../shared/icons.js';
import { card, decider } from './card.js';
import { byOf } from './tools.js';

let groups = 0;

/** @param {object} part The question; see `state`. @param {object} page */
export function questionView(part, page) {
  const { node: frame, body, fault } = card('question', QUESTION, t('question'));
  const field = h('input', { type: 'text', class: 'field', 'aria-label': t('question.else'), autocomplete: 'off' });
  const button = h('button', { type: 'button', class: 'button primary', on: { click: answer } });
  const choices = part.options.length ? choicesOf(part.options, field) : null;
  const text = h('p', { class: 'question-text', dir: 'auto' }, part.text);
  body.append(text, choices?.node ?? field, h('div', { class: 'card-buttons' }, button));
  const row = h('p', { class: 'settled', dir: 'auto', hidden: true });
  const node = h('div', {}, frame, row);
  let sending = false;
  const decide = decider(fault, (isSending) => {
    sending = isSending;
    refresh();
  });
  frame.addEventListener('input', refresh);
  frame.addEventListener('change', refresh);
  frame.addEventListener('keydown', (event) => {
    if (event.isComposing || event.keyCode === 229) return;
    const digit = event.target === field ? Number.NaN : Number(event.key);
    if (event.key === 'Enter' && event.target !== button) {
      event.preventDefault();
      answer();
    } else if (choices && digit >= 1) {
      choices.choose(digit - 1);
      refresh();
    }
  });
  refresh();
  return { node, update };

  function chosen() {
    return (choices ? choices.chosen() : field.value).trim();
  }

  function answer() {
    const said = chosen();
    if (said) decide(() => page.decide('answer', { text: said, question_id: part.target }));
  }

  function refresh() {
    setText(button, t(sending ? 'deciding' : 'question.answer'));
    if (!sending) button.append(h('kbd', { 'aria-hidden': 'true' }, 'Enter'));
    button.disabled = sending || !chosen();
  }

  function update(given) {
    const pending = given.resolved === null && page.isPending(given);
    show(frame, pending);
    show(row, given.resolved !== null);
    if (given.resolved === null || row.childNodes.length) return;
    const { decision, text: said } = given.resolved;
    const told =
      decision === 'expired'
        ? t('question.expired')
        : t('answered', { by: byOf(given.resolved, page.user), text: said ?? '' });
    row.append(drawing(QUESTION), `${given.text} · ${told}`);
  }
}

/** Options as radios with digits, and one for anything else. */
function choicesOf(options, field) {
  const name = `question${(groups += 1)}`;
  const radios = [];
  const row = (label, at, testid) => {
    const radio = h('input', { type: 'radio', name });
    radios.push(radio);
    return h(
      'label',
      { class: 'option', testid },
      radio,
      h('span', { class: 'option-text', dir: 'auto' }, label),
      h('kbd', { 'aria-hidden': 'true' }, `${at + 1}`),
    );
  };
  const rows = options.map((option, at) => row(option, at, 'option'));
  const other = row(t('question.else'), options.length, 'option-else');
  field.addEventListener('focus', () => (radios.at(-1).checked = true));
  const node = h('div', { class: 'options', role: 'radiogroup', 'aria-label': t('question') }, ...rows, other, field);
  return {
    node,
    choose(at) {
      const radio = radios[at];
      if (!radio) return;
      radio.checked = true;
      (radio === radios.at(-1) ? field : radio).focus();
    },
    chosen() {
      const at = radios.findIndex((radio) => radio.checked);
      return at === options.length ? field.value : (options[at] ?? '');
    },
  };
}
