/** What stands where no message is yet: the agent, what one may begin with, and its tools. */

import { drawing, h, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { ARROW, SHIELD } from '../shared/icons.js';

/** @param {object} page `submit(text)`. */
export function emptyView(page) {
  const node = h('div', { class: 'empty column' });
  let told = null;
  return {
    node,
    /** @param {object | null} agent As `/api/agents` tells of it; null while a chat is there. */
    update(agent) {
      show(node, agent !== null);
      if (agent === null || agent === told) return;
      told = agent;
      node.replaceChildren(h('h1', {}, agent.name));
      if (agent.description) node.append(h('p', { class: 'description', dir: 'auto' }, agent.description));
      if (agent.examples?.length) node.append(examples(agent.examples, page));
      if (agent.tools.length) node.append(tools(agent.tools));
    },
  };
}

function examples(texts, page) {
  const rows = texts.map((text) =>
    h(
      'button',
      { type: 'button', class: 'example', on: { click: () => page.submit(text) } },
      h('span', { dir: 'auto' }, text),
      drawing(ARROW),
    ),
  );
  return h('div', { class: 'examples' }, h('h2', {}, t('start')), ...rows);
}

function tools(found) {
  const chips = found.map((tool) => h('li', { title: tool.description }, tool.approval && drawing(SHIELD), tool.name));
  const asks = found.some((tool) => tool.approval);
  return h(
    'div',
    { class: 'its-tools' },
    h('h2', {}, t('tools')),
    h('ul', { class: 'chips' }, ...chips),
    asks && h('p', { class: 'asks' }, drawing(SHIELD), t('tools.ask')),
  );
}
