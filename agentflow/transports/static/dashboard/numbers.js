/** Numbers for charts and tables: shares of durations, heights of axes, short ways to write them. Pure. */

const GROWTH = Math.log(1.02); // of a step of a histogram, so that what it tells is within 1 %

/** Durations in ms, counted in steps of 2 %: two add up to a third. */
export class Histogram {
  /** @type {Map<number, number>} */
  #counts = new Map();
  count = 0;

  /** @param {number} ms */
  add(ms) {
    const step = Math.round(Math.log(Math.max(ms, 0.1)) / GROWTH);
    this.#counts.set(step, (this.#counts.get(step) ?? 0) + 1);
    this.count += 1;
  }

  /** @param {Histogram} other */
  merge(other) {
    for (const [step, count] of other.#counts) this.#counts.set(step, (this.#counts.get(step) ?? 0) + count);
    this.count += other.count;
  }

  /**
   * What these shares of the durations do not exceed, in ms; null for each where there are none.
   * @param {number[]} shares From 0 to 1, rising.
   * @returns {(number | null)[]}
   */
  quantiles(shares) {
    if (this.count === 0) return shares.map(() => null);
    const steps = [...this.#counts].sort(([one], [other]) => one - other);
    let at = 0;
    let seen = steps[0][1];
    return shares.map((share) => {
      const rank = Math.max(Math.ceil(share * this.count), 1);
      while (seen < rank) seen += steps[(at += 1)][1];
      return Math.exp(steps[at][0] * GROWTH);
    });
  }
}

/** The least of 1, 2, 5, 10, 20, … that is not below a value. @param {number} value */
export function step(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5]) if (value <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

/** The top of an axis: it rises at once, and falls only when a full window has stayed below. */
export class Ceiling {
  #top = 0;
  #since = 0; // from when all has stayed below the step under it
  #lower = 0; // what was needed since then

  /** @param {number} most What is to be seen. @param {number} now @param {number} window Both in ms. */
  take(most, now, window) {
    const needed = step(most);
    if (needed >= this.#top) {
      this.#top = needed;
      this.#since = now;
      this.#lower = 0;
      return this.#top;
    }
    this.#lower = Math.max(this.#lower, needed);
    if (now - this.#since >= window) {
      this.#top = this.#lower;
      this.#since = now;
      this.#lower = 0;
    }
    return this.#top;
  }
}

/** Grid lines below a top that is a step: two or three besides zero. @param {number} top */
export function grid(top) {
  const first = Number(top.toExponential()[0]);
  const parts = first === 5 ? 5 : 2;
  const all = Array.from({ length: parts + 1 }, (_, at) => (top * at) / parts);
  return parts === 5 ? [all[0], all[2], all[4]] : all;
}

/** A count, short: "8", "0.5", "16.3k", "1.2M". @param {number} value */
export function short(value) {
  if (value >= 999_950) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 10_000) return `${(value / 1000).toFixed(value >= 99_950 ? 0 : 1)}k`;
  if (value >= 1000) return `${Number((value / 1000).toFixed(1))}k`;
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value >= 0.095 ? 1 : 2);
}

/** A duration as charts and tables write it: "410 ms", "1.2 s", "18 s", "4 m 12 s". @param {number} ms */
export function brief(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${ms < 9950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
}

/** A share as a table writes it: "21.4%", "0". @param {number} share */
export const percent = (share) => (share === 0 ? '0' : `${(share * 100).toFixed(1)}%`);
