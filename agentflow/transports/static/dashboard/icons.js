/** Drawings that only the dashboard has: values for `d`, 16 by 16. */

export const TABLE = ['M2.5 3h11v10h-11zM2.5 6.5h11M2.5 9.8h11M7 3v10'];
export const PAUSE = ['M6 4v8M10 4v8'];
export const PLAY = ['M5.5 3.5l7 4.5l-7 4.5z'];
export const BACK = ['M13 8h-10M7 4l-4 4l4 4'];
export const PLUG = ['M6 2v3.5M10 2v3.5M4 5.5h8v2a4 4 0 0 1-8 0zM8 11.5v3'];
export const MISSED = ['M8 2.5v7M5 7l3 3l3-3M3 13h10'];
export const OUT = ['M9 3h4v4M13 3l-6 6M11 9.5v3.5h-8v-8h3.5'];
export const SQUARE = ['M3.5 5a1.5 1.5 0 0 1 1.5-1.5h6a1.5 1.5 0 0 1 1.5 1.5v6a1.5 1.5 0 0 1-1.5 1.5h-6a1.5 1.5 0 0 1-1.5-1.5z'];
export const CHAIN = ['M1 8h4M11 8h4M8 5a3 3 0 1 1 0 6a3 3 0 1 1 0-6z'];
export const ARROW_DASHED = ['M1 8h3M6 8h3M11 8h3M12 5l3 3l-3 3'];
