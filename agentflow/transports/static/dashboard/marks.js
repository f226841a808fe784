/** What stands on a chart besides its curves: where nothing is known, and what the ends of the curves say. */

const APART = 14; // px between two labels

/** Hatch a span in which events were missed. @param {uPlot} plot @param {[number, number]} hole ms @param {string} colour */
export function hatch(plot, [from, to], colour) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const left = Math.max(plot.valToPos(from / 1000, 'x', true), bbox.left);
  const right = Math.min(plot.valToPos(to / 1000, 'x', true), bbox.left + bbox.width);
  if (right <= left) return;
  const width = Math.max(right - left, 3 * ratio);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, bbox.top, width, bbox.height);
  ctx.clip();
  ctx.beginPath();
  for (let at = left - bbox.height; at < left + width; at += 6 * ratio) {
    ctx.moveTo(at, bbox.top + bbox.height);
    ctx.lineTo(at + bbox.height, bbox.top);
  }
  ctx.strokeStyle = colour;
  ctx.lineWidth = ratio;
  ctx.stroke();
  ctx.restore();
}

/**
 * Name each curve at its end, with its last value, or with the one under the crosshair, whose time then stands above.
 * @param {uPlot} plot @param {object} what
 */
export function labels(plot, { curves, values, sums, colours, format, font, ink, clock }) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const at = plot.cursor.idx ?? null;
  const told = curves
    .map(({ name }, index) => {
      const point = at ?? sums[index].findLastIndex((value) => value !== null);
      const value = values[index][point] ?? null;
      return value === null ? null : { text: `${name} ${format(value)}`, colour: colours[index], y: plot.valToPos(sums[index][point], 'y', true) };
    })
    .filter(Boolean)
    .sort((one, other) => other.y - one.y);
  let limit = bbox.top + bbox.height;
  for (const label of told) {
    label.y = Math.min(label.y, limit);
    limit = label.y - APART * ratio;
  }
  ctx.save();
  ctx.font = font.replace('11px', `${11 * ratio}px`);
  ctx.textAlign = 'left';
  ctx.textBaseline = 'middle';
  for (const { text, colour, y } of told) {
    ctx.fillStyle = colour;
    ctx.fillText(text, bbox.left + bbox.width + 6 * ratio, Math.max(y, bbox.top));
  }
  if (at !== null) {
    ctx.fillStyle = ink;
    ctx.textAlign = 'center';
    ctx.fillText(clock(plot.data[0][at] * 1000), plot.valToPos(plot.data[0][at], 'x', true), 5 * ratio);
  }
  ctx.restore();
}

/** A line of a few pixels for a cell of a table. @param {SVGElement} path @param {number[]} values */
export function spark(path, values) {
  const most = Math.max(...values, 1);
  const points = values.map((value, at) => `${((at * 64) / Math.max(values.length - 1, 1)).toFixed(1)} ${(15 - (value / most) * 14).toFixed(1)}`);
  const d = points.length ? `M${points.join('L')}` : '';
  if (path.getAttribute('d') !== d) path.setAttribute('d', d);
}
