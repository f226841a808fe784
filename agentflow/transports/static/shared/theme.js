/** Light or dark: the system's, until one was chosen. `first.js` sets it before the first paint. */

import { lasting } from './storage.js';

/** Choose the other one. */
export function turnTheme() {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const theme = (root.dataset.theme ?? system) === 'dark' ? 'light' : 'dark';
  root.dataset.theme = theme;
  lasting.set('theme', theme);
}
