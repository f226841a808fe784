/** The server's time, as far as it was heard: what has elapsed since an event is told without this machine's date. */

let offset = -Infinity;

/** Take a time that the server told just now. The latest counts: the others were longer on their way. */
export function hear(ms) {
  if (Number.isFinite(ms)) offset = Math.max(offset, ms - performance.now());
}

/** The server's time in milliseconds since 1970, for differences. */
export function now() {
  return performance.now() + (Number.isFinite(offset) ? offset : Date.now() - performance.now());
}
