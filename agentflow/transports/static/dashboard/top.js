/** The top bar and the strips below it: whether the numbers are live, over which window, and what is missing. */

import { keepKey } from '../shared/api.js';
import { drawing, h, setAttribute, setText, show } from '../shared/dom.js';
import { elapsed, language, number, speak } from '../shared/i18n.js';
import { CLOSE, GLOBE, LOGO, MOON, MORE } from '../shared/icons.js';
import { lasting, ofTab } from '../shared/storage.js';
import { turnTheme } from '../shared/theme.js';
import { clock } from './chart.js';
import { MISSED, PAUSE, PLAY, PLUG } from './icons.js';
import { lettersWork } from './keys.js';
import { brief } from './numbers.js';
import { WINDOWS } from './series.js';
import { t } from './texts.js';

const LATE = 2000; // ms behind, from where on it is amber
const SPANS = { '5m': '5 m', '15m': '15 m', '1h': '1 h' };

/** @param {{turnPause: () => void, setWindow: (name: string) => void, showKeys: () => void, redraw: () => void}} page */
export function topView(page) {
  const logo = drawing(LOGO, 'logo');
  logo.setAttribute('viewBox', '0 0 26 16');
  const tabs = { '#/': h('a', { href: '#/' }, t('overview')), '#/runs': h('a', { href: '#/runs' }, t('runs')) };
  const [dot, word, detail] = [h('i', { class: 'dot' }), h('b'), h('span', { class: 'sub', 'aria-hidden': 'true' })];
  const state = h('p', { class: 'live', role: 'status', testid: 'live' }, dot, word, detail);
  const spans = Object.keys(WINDOWS).map((name) => h('button', { type: 'button', 'aria-pressed': 'false', testid: `window-${name}`, on: { click: () => page.setWindow(name) } }, SPANS[name]));
  const bare = (name, paths, act, testid) => h('button', { type: 'button', class: 'bare', 'aria-label': name, title: name, testid, on: { click: act } }, drawing(paths));
  const pause = bare(t('pause'), PAUSE, page.turnPause, 'pause');
  const turn = () => (turnTheme(), page.redraw());
  const tongue = bare(t('language'), GLOBE, () => speak(language === 'zh' ? 'en' : 'zh'), 'language-toggle');
  const menu = menuView(page);
  const controls = h('div', { class: 'controls' }, h('div', { class: 'spans', role: 'group', 'aria-label': t('window') }, ...spans), pause, tongue, bare(t('theme'), MOON, turn, 'theme-toggle'));
  const more = bare(t('more'), MORE, () => node.classList.toggle('is-open'));
  more.classList.add('only-phone');
  const node = h('header', { class: 'top' }, h('a', { class: 'brand', href: '#/' }, logo, h('span', {}, 'agentflow')), h('nav', {}, ...Object.values(tabs)), state, controls, menu.node, more);
  let shownPause = false;
  return { node, update, closeMenu: menu.close };

  function update({ place, window, pausedAt, lost, fleet, now, isReady }) {
    for (const [hash, tab] of Object.entries(tabs)) setAttribute(tab, 'aria-current', (place === hash || (hash === '#/runs' && place.startsWith('#/run'))) ? 'page' : null);
    Object.keys(WINDOWS).forEach((name, at) => setAttribute(spans[at], 'aria-pressed', String(name === window)));
    show(controls, isReady);
    if (shownPause !== (pausedAt !== null)) {
      shownPause = pausedAt !== null;
      pause.replaceChildren(drawing(shownPause ? PLAY : PAUSE));
      for (const name of ['aria-label', 'title']) setAttribute(pause, name, t(shownPause ? 'resume' : 'pause'));
    }
    const [kind, text, more] = telling({ pausedAt, lost, fleet, now, isReady });
    setAttribute(dot, 'data-kind', kind);
    setText(word, text);
    setText(detail, more);
  }
}

function telling({ pausedAt, lost, fleet, now, isReady }) {
  if (!isReady) return ['off', t('unconnected'), ''];
  if (lost !== null) return ['late', t('disconnected'), elapsed(performance.now() - lost.since)];
  if (pausedAt !== null) return ['off', t('paused'), t('paused.at', { time: clock(pausedAt) })];
  if (fleet.delay === null) return ['live', t('live'), fleet.heard === 0 ? t('live.none') : ''];
  if (now - fleet.last > 10_000) return ['live', t('live'), t('live.quiet', { span: brief(now - fleet.last) })];
  return [fleet.delay > LATE ? 'late' : 'live', t('live'), t('live.behind', { span: elapsed(fleet.delay) })];
}

function menuView(page) {
  const entry = (act, text = '') => h('button', { type: 'button', class: 'menu-item', on: { click: act } }, text);
  const letters = entry(() => {
    lasting.set('letters', lettersWork() ? 'off' : null);
    tell();
  });
  const signOut = entry(() => (keepKey(null), location.reload()), t('signout'));
  const keys = entry(() => (close(), page.showKeys()), t('keys'));
  const list = h('div', { class: 'menu-list', hidden: true }, keys, letters, signOut);
  const button = h('button', { type: 'button', class: 'bare', 'aria-label': t('more'), 'aria-expanded': 'false', on: { click: () => open(list.hidden) } }, drawing(MORE));
  const node = h('div', { class: 'menu' }, button, list);
  document.addEventListener('pointerdown', (event) => node.contains(event.target) || open(false));
  return { node, close };

  function open(out) {
    tell();
    show(list, out);
    setAttribute(button, 'aria-expanded', String(out));
  }

  function close() {
    const was = !list.hidden;
    open(false);
    return was;
  }

  function tell() {
    setText(letters, t(lettersWork() ? 'letters.on' : 'letters.off'));
    show(signOut, ofTab.get('key') !== null);
  }
}

/** @param {{tryNow: () => void, dismiss: (strip: object) => void}} page */
export function stripsView(page) {
  const cutText = h('span', { 'aria-hidden': 'true' }); // it counts down, which nobody wants to hear
  const said = h('div', { class: 'unseen', role: 'alert' });
  const cut = h('p', { class: 'strip is-cut', hidden: true, testid: 'cut' }, drawing(PLUG), cutText, h('button', { type: 'button', class: 'button', on: { click: page.tryNow } }, t('cut.now')));
  const gaps = h('div', { role: 'alert' });
  const node = h('div', { class: 'strips' }, said, cut, gaps);
  const shown = new Map();
  return { node, update };

  function update({ lost, strips, asOf }) {
    show(cut, lost !== null);
    setText(said, lost === null ? '' : t('unconnected'));
    if (lost !== null) {
      const seconds = Math.max(Math.ceil((lost.until - performance.now()) / 1000), 0);
      setText(cutText, t('cut', { time: clock(asOf), seconds }));
    }
    for (const [strip, line] of shown) if (!strips.includes(strip)) (line.remove(), shown.delete(strip));
    for (const strip of strips) {
      if (!shown.has(strip)) {
        const close = h('button', { type: 'button', class: 'bare', 'aria-label': t('dismiss'), on: { click: () => page.dismiss(strip) } }, drawing(CLOSE));
        const line = h('p', { class: 'strip', testid: strip.kind }, drawing(MISSED), h('span'), close);
        shown.set(strip, line);
        gaps.append(line);
      }
      setText(shown.get(strip).children[1], textOf(strip));
    }
  }
}

function textOf(strip) {
  if (strip.kind === 'gap') {
    return t(strip.isMended ? 'gap.right' : 'gap', { count: number(strip.missed), from: clock(strip.from), to: clock(strip.to) });
  }
  if (strip.kind === 'restart') return t('restart', { time: clock(strip.from) });
  return strip.kind === 'draining' ? t('draining') : t('warned', strip);
}
