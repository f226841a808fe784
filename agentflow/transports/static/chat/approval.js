/** A call that waits for a person's yes: its arguments as a form, which may be changed before it runs. */

import { now } from '../shared/clock.js';
import { h, setAttribute, setText, show } from '../shared/dom.js';
import { span, t } from '../shared/i18n.js';
import { SHIELD } from '../shared/icons.js';
import { card, decider } from './card.js';
import { fieldsOf, read, textOf, typeText } from './fields.js';

const SLIP = 500; // ms after it appeared in which a click was meant for what stood there before

/** @param {object} part The approval; see `state`. @param {object} page */
export function approvalView(part, page) {
  const { node, body, aside, fault } = card('approval', SHIELD, t('approval'));
  const form = formOf(part, page, () => refresh());
  const why = h('input', {
    type: 'text',
    class: 'field',
    'aria-label': t('reject.why'),
    placeholder: t('reject.why'),
    hidden: true,
  });
  const approve = h('button', { type: 'button', class: 'button primary', on: { click: run } });
  const reject = h('button', { type: 'button', class: 'button', testid: 'reject', on: { click: refuse } }, t('reject'));
  const undo = h('button', { type: 'button', class: 'text undo', on: { click: () => form.undo() } }, t('undo'));
  const appeared = performance.now();
  let sending = false;
  const decide = decider(fault, (isSending) => {
    sending = isSending;
    refresh();
  });
  const head = h(
    'div',
    { class: 'call-head' },
    h('span', { class: 'tool-name' }, part.tool),
    h('span', { class: 'call-why', dir: 'auto' }, part.reason),
    form.toggle,
  );
  body.append(head, form.node, why, h('div', { class: 'card-buttons' }, approve, reject, undo));
  node.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing || event.keyCode === 229) return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      run();
    } else if (event.target === why) {
      refuse();
    }
  });
  refresh();
  return { node, update };

  function run() {
    const { edited, value, faulty } = form.read();
    if (faulty || isSlip()) return;
    if (edited) decide(() => page.decide('amend', { call_id: part.callId, arguments: value }));
    else decide(() => page.decide('approve', { call_id: part.callId, arguments_hash: part.hash }));
  }

  function isSlip() {
    return performance.now() - appeared < SLIP;
  }

  function refuse() {
    if (isSlip()) return;
    if (why.hidden) {
      show(why, true);
      why.focus();
      return;
    }
    decide(() => page.decide('reject', { call_id: part.callId, why: why.value.trim() }));
  }

  function refresh() {
    const { edited, faulty } = form.read();
    setAttribute(approve, 'data-testid', edited ? 'amend' : 'approve');
    setText(approve, sending ? t('deciding') : t(edited ? 'amend' : 'approve'));
    if (!sending) approve.append(h('kbd', { 'aria-hidden': 'true' }, 'Ctrl Enter'));
    approve.disabled = faulty || sending;
    reject.disabled = sending;
    show(undo, edited && !sending);
  }

  function update(given) {
    show(node, given.resolved === null && page.isPending(given));
    if (given.expires !== null) setText(aside, t('expires', { left: left(given.expires - now()) }));
  }
}

/** Minutes and seconds, "9:42"; where there are hours of it, those and the minutes, "23 h 59 m". */
function left(ms) {
  if (ms >= 3600_000) return span(ms);
  const seconds = Math.max(Math.floor(ms / 1000), 0);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}

/** The arguments, field by field or as one text of JSON. `read` is what stands there. */
function formOf(part, page, changed) {
  const given = part.arguments ?? {};
  const views = fieldsOf(page.schemaOf(part.tool), given).map((field) => fieldView(field, given, changed));
  const fields = h('div', { class: 'fields' }, ...views.map((view) => view.node));
  const text = h('textarea', {
    class: 'field json',
    rows: 8,
    spellcheck: 'false',
    'aria-label': t('json.all'),
    on: { input: () => readAll() },
  });
  const fault = h('p', { class: 'field-fault' });
  const all = h('div', { class: 'field-all', hidden: true }, text, fault);
  const toggle = h('button', { type: 'button', class: 'text as-json', on: { click: turn } }, t('as.json'));
  const node = h('div', { class: 'form' }, fields, all);
  const whole = (value) => JSON.stringify(value, null, 2);
  return { node, toggle, read: readForm, undo };

  function turn() {
    const toText = all.hidden;
    if (toText) {
      text.value = whole(valueOf());
    } else {
      const { value, faulty } = readText();
      if (faulty) return;
      for (const view of views) view.set(value[view.name]);
    }
    show(all, toText);
    show(fields, !toText);
    setText(toggle, t(toText ? 'as.form' : 'as.json'));
    readAll();
  }

  function undo() {
    for (const view of views) view.set(given[view.name]);
    text.value = whole(given);
    readAll();
  }

  function readAll() {
    setText(fault, all.hidden ? '' : (readText().fault ?? ''));
    changed();
  }

  function valueOf() {
    return Object.fromEntries(
      views.map((view) => [view.name, view.read().value]).filter(([, value]) => value !== undefined),
    );
  }

  function readText() {
    try {
      const value = JSON.parse(text.value);
      const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
      return isObject ? { value, faulty: false } : { faulty: true, fault: t('not.object') };
    } catch {
      return { faulty: true, fault: t('not.json') };
    }
  }

  function readForm() {
    if (!all.hidden) {
      const found = readText();
      return { ...found, edited: found.faulty || JSON.stringify(found.value) !== JSON.stringify(given) };
    }
    const faulty = views.some((view) => view.read().fault !== undefined);
    return { edited: views.some((view) => view.isEdited()), faulty, value: valueOf() };
  }
}

let fieldNumber = 0;

function fieldView(field, given, changed) {
  const id = `field${(fieldNumber += 1)}`;
  const wasGiven = Object.hasOwn(given, field.name);
  const before = textOf(field, given[field.name]);
  const input = inputOf(field, { id, class: 'field', 'aria-describedby': `${id}-about`, on: { input: refresh } });
  const mark = h('span', { class: 'edited' }, t('edited'));
  const was = h('span', {});
  const about = h('p', { class: 'field-about', id: `${id}-about` });
  const node = h(
    'div',
    { class: 'field-row' },
    h('label', { for: id }, field.name),
    h('div', { class: 'field-cell' }, h('div', { class: 'field-box' }, input, mark), about),
  );
  input.value = before;
  refresh({ silent: true });
  return { node, name: field.name, read: readIt, isEdited, set };

  function set(value) {
    input.value = textOf(field, value);
    refresh();
  }

  function isEdited() {
    return input.value !== before;
  }

  function readIt() {
    if (!isEdited()) return wasGiven ? { value: given[field.name] } : {};
    return read(field, input.value, wasGiven);
  }

  function refresh({ silent = false } = {}) {
    const edited = isEdited();
    const { fault } = readIt();
    input.classList.toggle('is-edited', edited);
    setAttribute(input, 'aria-invalid', fault ? 'true' : null);
    show(mark, edited);
    about.classList.toggle('field-fault', fault !== undefined);
    if (fault) {
      about.replaceChildren(fault);
    } else if (edited) {
      setText(was, t('was'));
      about.replaceChildren(was, ' ', h('s', {}, before), ' · ', typeText(field));
    } else {
      about.replaceChildren(typeText(field));
    }
    if (!silent) changed();
  }
}

function inputOf({ kind, schema }, props) {
  if (kind === 'choice' || kind === 'boolean') {
    const options = kind === 'choice' ? schema.enum : ['true', 'false'];
    return h('select', props, ...['', ...options].map((value) => h('option', { value }, value)));
  }
  if (kind === 'json') return h('textarea', { ...props, rows: 2, spellcheck: 'false' });
  const mode = kind === 'integer' ? 'numeric' : kind === 'number' ? 'decimal' : null;
  return h('input', {
    ...props,
    type: 'text',
    inputmode: mode,
    autocomplete: 'off',
    spellcheck: mode ? 'false' : null,
  });
}
