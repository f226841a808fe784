/**
 * Elements, made and kept in step with a model. Texts only ever become text nodes; nothing here takes markup.
 *
 * A view is `{node, update(model)}`: `update` writes only what differs, so that a focus, a selection and a scroll
 * position outlast it.
 */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An element.
 * @param {string} tag
 * @param {Record<string, unknown>} [props] `class`, `testid`, `on` (listeners by event), else attributes; undefined,
 *   null and false leave an attribute out.
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else {
      setAttribute(node, name === 'testid' ? 'data-testid' : name, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/**
 * An attribute, written where it differs. True is an empty one; undefined, null and false are none.
 * @param {Element} node @param {string} name @param {unknown} value
 */
export function setAttribute(node, name, value) {
  if (value === undefined || value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? '' : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** A text, written where it differs. @param {Element} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Whether a node is to be seen. @param {HTMLElement} node @param {boolean} shown */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * A drawing of lines, 16 by 16, that takes the colour of the text and that nobody is read.
 * @param {string[]} paths Values for `d`. @param {string} [name] Its class.
 */
export function drawing(paths, name = '') {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('class', `icon ${name}`.trim());
  svg.setAttribute('aria-hidden', 'true');
  for (const d of paths) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', d);
    svg.append(path);
  }
  return svg;
}

/**
 * A parent whose children are views of a list, each kept under its key.
 * @template T
 * @param {HTMLElement} parent
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => {node: HTMLElement, update: (item: T) => void}} make
 * @returns {(items: T[]) => void}
 */
export function keyed(parent, keyOf, make) {
  const views = new Map();
  return (items) => {
    const wanted = new Set(items.map(keyOf));
    for (const [key, view] of views) {
      if (!wanted.has(key)) {
        view.node.remove();
        views.delete(key);
      }
    }
    let before = null;
    for (const item of items) {
      const key = keyOf(item);
      if (!views.has(key)) views.set(key, make(item));
      const view = views.get(key);
      const place = before === null ? parent.firstChild : before.nextSibling;
      if (view.node !== place) parent.insertBefore(view.node, place);
      view.update(item);
      before = view.node;
    }
  };
}
