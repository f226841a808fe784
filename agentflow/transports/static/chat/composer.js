/** Where the user writes: one field, the pickers of agent and model, and one button that sends or stops. */

import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { DOWN, SEND, STOP } from '../shared/icons.js';

/**
 * `update` takes `{running, stopping, blocked, asked, offline, agent, agents, model, models, queue, editing, hasLast}`.
 * @param {object} page What the page lets it do: `submit(text)`, `stop()`, `takeBack(key)`, `choose(name, value)`,
 *   `endEditing()`.
 */
export function composerView(page) {
  let now = { running: false };
  const field = h('textarea', {
    rows: 1,
    testid: 'composer',
    'aria-label': t('message'),
    'aria-describedby': 'status',
    dir: 'auto',
    enterkeyhint: 'send',
    on: { input: refresh, keydown: onKey },
  });
  const button = h('button', { type: 'button', class: 'go', on: { click: press } });
  const agents = picker('agent-picker', t('agent'), (value) => page.choose('agent', value));
  const models = picker('model-picker', t('model'), (value) => page.choose('model', value));
  const hints = h('span', { class: 'hints', 'aria-hidden': 'true' });
  const waiting = h('div', { class: 'queue' });
  const rows = keyed(
    waiting,
    (message) => message.key,
    (message) => queuedView(message, page),
  );
  const editing = h(
    'div',
    { class: 'editing' },
    h('span', {}, t('editing')),
    h('button', { type: 'button', class: 'text', on: { click: page.endEditing } }, t('editing.end')),
  );
  const box = h(
    'div',
    { class: 'composer' },
    field,
    h('div', { class: 'composer-row' }, agents.node, models.node, hints, button),
  );
  const node = h('div', { class: 'composer-place' }, waiting, editing, box);
  return {
    node,
    update,
    write,
    focus: () => field.focus(),
    isEmpty: () => field.value === '',
    text: () => field.value,
  };

  /** Put a text there, to be gone on with. */
  function write(text) {
    field.value = text;
    refresh();
    field.focus();
    field.setSelectionRange(text.length, text.length);
  }

  function update(given) {
    now = given;
    rows(given.queue);
    show(editing, given.editing);
    agents.update(given.agents, given.agent);
    models.update(given.models, given.model);
    refresh();
  }

  /** Whether what is written may be sent now. */
  function maySend() {
    return field.value.trim() !== '' && !now.blocked && !now.offline;
  }

  function refresh() {
    const stops = now.running && !now.blocked && !(now.asked && maySend());
    const { agent } = now;
    field.disabled = Boolean(now.blocked);
    const key = now.blocked
      ? 'message.blocked'
      : now.asked
        ? 'message.answer'
        : now.running
          ? 'message.queue'
          : 'message.to';
    setAttribute(field, 'placeholder', t(key, { agent }));
    if (button.dataset.testid !== (stops ? 'stop' : 'send')) {
      setAttribute(button, 'data-testid', stops ? 'stop' : 'send');
      setAttribute(button, 'aria-label', t(stops ? 'stop' : 'send'));
      button.replaceChildren(drawing(stops ? STOP : SEND, stops ? 'filled' : ''));
    }
    button.disabled = stops ? Boolean(now.stopping) : !maySend();
    button.classList.toggle('ready', !stops && maySend());
    grow();
    hint(stops);
  }

  function grow() {
    field.style.height = 'auto';
    if (field.value) field.style.height = `${field.scrollHeight}px`; // not by what stands there while it is empty
  }

  function hint(stops) {
    const told = hintsFor(stops);
    const text = told.map(([key, what]) => `${key} ${t(what)}`).join();
    if (hints.dataset.told === text) return;
    hints.dataset.told = text;
    hints.replaceChildren(...told.flatMap(([key, what]) => [h('kbd', {}, key), h('span', {}, t(what))]));
  }

  function hintsFor(stops) {
    if (now.blocked) return [];
    if (stops) return [['Esc', 'hint.stop']];
    if (field.value) return [['Enter', 'hint.send']];
    if (now.hasLast) return [['↑', 'hint.edit']];
    return [
      ['Enter', 'hint.send'],
      ['⇧ Enter', 'hint.line'],
    ];
  }

  function press() {
    if (button.dataset.testid === 'stop') page.stop();
    else submit();
  }

  function submit() {
    if (!maySend()) return;
    const text = field.value;
    field.value = '';
    page.submit(text);
    refresh();
  }

  function onKey(event) {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === 'Enter' && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      submit();
    } else if (event.key === 'ArrowUp' && field.value === '') {
      if (page.editLast()) event.preventDefault();
    }
  }
}

function queuedView(message, page) {
  const back = h(
    'button',
    { type: 'button', class: 'text', on: { click: () => page.takeBack(message.key) } },
    t('queued.back'),
  );
  const text = h('span', { class: 'queued-text', dir: 'auto' }, message.text);
  const node = h(
    'div',
    { class: 'queued', testid: 'queued' },
    text,
    h('span', { class: 'queued-why' }, t('queued')),
    back,
  );
  return { node, update: () => {} };
}

/** One of several, by a select of the system. With nothing to choose it is its text. */
function picker(testid, label, choose) {
  const select = h('select', { testid, 'aria-label': label, on: { change: () => choose(select.value) } });
  const shown = h('span', { class: 'picked', 'aria-hidden': 'true' });
  const node = h('span', { class: 'picker' }, shown, drawing(DOWN), select);
  let told = '';
  return {
    node,
    update(options, value) {
      const text = JSON.stringify(options);
      if (told !== text) {
        told = text;
        select.replaceChildren(...options.map(([key, name]) => h('option', { value: key }, name)));
      }
      select.value = value ?? '';
      setText(shown, options.find(([key]) => key === (value ?? ''))?.[1] ?? '');
      show(node, options.length > 0);
      select.disabled = options.length < 2;
    },
  };
}
