/** The drawings: values for `d`, 16 by 16, lines of 1.5. The ring of a call is one event on the marble line. */

const RING = 'M8 1.75a6.25 6.25 0 1 1 0 12.5a6.25 6.25 0 1 1 0-12.5z';

/** By the state of a call. Of a running one the second turns. */
export const RINGS = {
  queued: [RING],
  running: [RING, RING, 'M8 6.6a1.4 1.4 0 1 1 0 2.8a1.4 1.4 0 1 1 0-2.8z'],
  done: [RING, 'M5.4 8.2l1.8 1.8l3.4-3.8'],
  failed: [RING, 'M6 6l4 4M10 6l-4 4'],
  waiting: [RING, 'M6.5 5.8v4.4M9.5 5.8v4.4'],
  cancelled: [RING, 'M5.5 8h5'],
  unknown: [RING, 'M6.3 6.6a1.7 1.7 0 1 1 2.5 1.5c-.6.3-.8.6-.8 1.1M8 11v.1'],
};

export const THOUGHT = [RING, 'M5.2 8v.1M8 8v.1M10.8 8v.1'];
export const CHEVRON = ['M6 4l4 4l-4 4'];
export const DOWN = ['M4 6l4 4l4-4'];
export const ARROW = ['M3 8h10M9 4l4 4l-4 4'];
export const SEND = ['M8 13V3M4 7l4-4l4 4'];
export const STOP = ['M5 5h6v6h-6z'];
export const COPY = ['M6 6h7v7h-7z', 'M4 10h-1v-7h7v1'];
export const COPIED = ['M3 8.5l3.2 3.2l6.8-7.4'];
export const RETRY = ['M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3'];
export const EDIT = ['M3 13l.7-2.9l7.3-7.3l2.2 2.2l-7.3 7.3z'];
export const SHIELD = ['M8 1.8l5 1.8v4c0 3.2-2 5.4-5 6.6c-3-1.2-5-3.4-5-6.6v-4z'];
export const QUESTION = ['M5.8 5.8a2.3 2.3 0 1 1 3.4 2c-.8.5-1.2.9-1.2 1.8M8 12.4v.1'];
export const WARNING = ['M8 2l6.2 11h-12.4zM8 6.5v3M8 11.4v.1'];
export const PLUS = ['M8 2.5v11M2.5 8h11'];
export const PANEL = ['M2.5 3h11v10h-11zM6.5 3v10'];
export const GLOBE = [RING, 'M1.75 8h12.5M8 1.75c-4 4-4 8.5 0 12.5M8 1.75c4 4 4 8.5 0 12.5'];
export const MOON = ['M13 9.5a5.5 5.5 0 1 1-6.5-6.5a4.5 4.5 0 0 0 6.5 6.5z'];
export const MORE = ['M3 8h.5M7.75 8h.5M12.5 8h.5'];
export const CLOSE = ['M4 4l8 8M12 4l-8 8'];

/** The marble line: how a turn has ended. */
export const ENDS = {
  final: ['M1 8h4M11 8h3M14.5 4.5v7', 'M8 5.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 1 1 0-5.6z'],
  failed: ['M1 8h4M11 8h1M12 5.5l3.5 5M15.5 5.5l-3.5 5', 'M8 5.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 1 1 0-5.6z'],
  cancelled: ['M1 8h4M11 8h2M14.5 4v2M14.5 7.2v1.6M14.5 10v2', 'M8 5.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 1 1 0-5.6z'],
};
export const LOGO = [
  'M1 8h4.5M11.5 8h3.5M21 8h4M25 4.5v7',
  'M8.5 5a3 3 0 1 1 0 6a3 3 0 1 1 0-6z',
  'M18 5a3 3 0 1 1 0 6a3 3 0 1 1 0-6z',
]; // 26 wide
