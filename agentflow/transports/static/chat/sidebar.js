/** The list of sessions beside the chat; a drawer where there is no room. */

import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { language, languageOf, speak, t } from '../shared/i18n.js';
import { CLOSE, GLOBE, LOGO, MOON, PLUS } from '../shared/icons.js';
import { turnTheme } from '../shared/theme.js';

const DAY = 24 * 60 * 60 * 1000;

/** @param {object} page `open(id)`, `newChat()`, `signOut()`. */
export function sidebarView(page) {
  const logo = drawing(LOGO, 'logo');
  logo.setAttribute('viewBox', '0 0 26 16');
  const close = button('bare drawer-close', null, t('sessions.close'), CLOSE, () => shown(false));
  const add = h(
    'button',
    { type: 'button', class: 'new', testid: 'new-chat', on: { click: () => (shown(false), page.newChat()) } },
    drawing(PLUS),
    h('span', {}, t('new')),
    h('kbd', { 'aria-hidden': 'true' }, 'Ctrl ⇧ O'),
  );
  const list = h('div', { class: 'sessions' });
  const none = h('p', { class: 'aside' }, t('sessions.none'));
  const groups = keyed(
    list,
    (group) => group.key,
    () => groupView(pick),
  );
  const user = h('span', { class: 'who' });
  const foot = h(
    'div',
    { class: 'sidebar-foot' },
    user,
    button('bare', 'language-toggle', t('language'), GLOBE, () => speak(language === 'zh' ? 'en' : 'zh')),
    button('bare', 'theme-toggle', t('theme'), MOON, turnTheme),
  );
  const node = h(
    'nav',
    { class: 'sidebar', 'aria-label': t('sessions') },
    h('div', { class: 'brand' }, logo, h('span', {}, 'agentflow'), close),
    add,
    h('div', { class: 'session-list', testid: 'session-list' }, none, list),
    foot,
  );
  const veil = h('div', { class: 'veil', on: { click: () => shown(false) } });
  return { node, veil, update, shown, isShown: () => node.classList.contains('is-open') };

  function pick(id) {
    shown(false);
    page.open(id);
  }

  /** Whether the drawer is out. @param {boolean} out */
  function shown(out) {
    node.classList.toggle('is-open', out);
    veil.classList.toggle('is-open', out);
    if (out) add.focus();
  }

  /** @param {object[]} sessions With `session_id`, `title`, `used_at`, `word` and `chosen`. */
  function update(sessions, name) {
    show(none, sessions.length === 0);
    groups(grouped(sessions));
    setText(user, name ?? '');
  }
}

function button(name, testid, label, drawn, act) {
  const props = { type: 'button', class: name, testid, 'aria-label': label, title: label, on: { click: act } };
  return h('button', props, drawing(drawn));
}

function grouped(sessions) {
  const today = new Date().setHours(0, 0, 0, 0);
  const nameOf = ({ used_at: used }) => {
    const at = used * 1000;
    if (at >= today) return 'today';
    return at >= today - DAY ? 'yesterday' : 'earlier';
  };
  return ['today', 'yesterday', 'earlier']
    .map((key) => ({ key, sessions: sessions.filter((session) => nameOf(session) === key) }))
    .filter((group) => group.sessions.length > 0);
}

function groupView(pick) {
  const title = h('h2', {});
  const items = h('ul', {});
  const rows = keyed(
    items,
    (session) => session.session_id,
    (session) => itemView(session, pick),
  );
  return {
    node: h('div', { class: 'session-group' }, title, items),
    update(group) {
      setText(title, t(group.key));
      rows(group.sessions);
    },
  };
}

function itemView(first, pick) {
  const title = h('span', { class: 'session-title', dir: 'auto' });
  const word = h('span', { class: 'session-word' });
  const item = h(
    'button',
    { type: 'button', class: 'session', testid: 'session-item', on: { click: () => pick(first.session_id) } },
    title,
    word,
  );
  return {
    node: h('li', {}, item),
    update(session) {
      setText(title, session.title || t('untitled'));
      setAttribute(title, 'lang', languageOf(session.title));
      setText(word, session.word ? t(`is.${session.word}`) : '');
      setAttribute(word, 'data-word', session.word);
      setAttribute(item, 'aria-current', session.chosen ? 'page' : null);
    },
  };
}
