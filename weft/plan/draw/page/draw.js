// The inner loops. A lane is one row of pixels: every event adds its colour to the pixels it covers, in proportion, so
// that a thousand events in a pixel give their mean and nothing flickers while zooming. Rows are then stretched to the
// height of their lanes.

class Strip {
  constructor(width) {
    this.width = width;
    this.sums = new Float32Array(width * 4);  // red, green, blue, coverage
  }
  clear() { this.sums.fill(0); }
  pixel(x, share, table, colour) {
    const sums = this.sums, at = 4 * x;
    sums[at] += share * table[colour];
    sums[at + 1] += share * table[colour + 1];
    sums[at + 2] += share * table[colour + 2];
    sums[at + 3] += share;
  }
  // Device pixels from x0 to x1 (fractions count), `weight` of the coverage.
  add(x0, x1, table, colour, weight) {
    if (x0 < 0) x0 = 0;
    if (x1 > this.width) x1 = this.width;
    if (x1 <= x0) return;
    const first = Math.floor(x0), last = Math.floor(x1);
    if (first === last) return this.pixel(first, (x1 - x0) * weight, table, colour);
    this.pixel(first, (first + 1 - x0) * weight, table, colour);
    for (let x = first + 1; x < last; ++x) this.pixel(x, weight, table, colour);
    if (last < this.width) this.pixel(last, (x1 - last) * weight, table, colour);
  }
  write(pixels, row) {
    const sums = this.sums;
    for (let x = 0, from = 0, to = row * this.width * 4; x < this.width; ++x, from += 4, to += 4) {
      const coverage = sums[from + 3];
      if (coverage <= 0) continue;
      pixels[to] = sums[from] / coverage;
      pixels[to + 1] = sums[from + 1] / coverage;
      pixels[to + 2] = sums[from + 2] / coverage;
      pixels[to + 3] = 255 * Math.min(1, coverage);
    }
  }
}

const LEAST = 0.3;  // pixels: minimum width of an event, so that none disappears
const FAINT = 0.14;  // weight of an event while others are highlighted

// Adds the visible events of a track. window: {from, to, scale} in ns and device pixels per ns.
// highlight: {labels: Uint8Array | null, microBatch: number | null} or null.
// texts: receives {x0, x1, index, ...} of each event that is wide enough for its name, unless null.
function addTrack(strip, track, rank, model, window, theme, highlight, texts, wide) {
  const {events, communicates} = track, {from, to, scale} = window, {table} = theme;
  const {start, end, label, microBatch} = events, category = model.category, shades = SHADES.length;
  const busy = rank.busy;
  let b = communicates ? after(busy.end, from) : 0;
  for (let i = after(end, from - 1 / scale); i < events.count && start[i] <= to; ++i) {
    const m = microBatch[i], l = label[i], shade = m < 0 ? 2 : m % shades;
    let x0 = (start[i] - from) * scale, x1 = (end[i] - from) * scale;
    const isWide = x1 - x0 >= 3;
    if (isWide) {  // whole pixels, and one left free before the next
      x0 = Math.round(x0);
      x1 = Math.max(x0 + 1, Math.round(x1) - 1);
    } else if (x1 - x0 < LEAST) {
      x1 = x0 + LEAST;
    }
    const bright = !highlight || ((highlight.labels === null || highlight.labels[l]) &&
                                  (highlight.microBatch === null || highlight.microBatch === m));
    const weight = bright ? 1 : FAINT;
    let kind = category[l];
    if (communicates) {
      kind = addTransfer(strip, start[i], end[i], x0, x1, window, busy, b, table, 3 * shade, weight);
      while (b < busy.count && busy.end[b] <= end[i]) ++b;
    } else {
      strip.add(x0, x1, table, 3 * (kind * shades + shade), weight);
    }
    if (texts && x1 - x0 >= wide) texts.push({x0, x1, index: i, kind, shade, bright});
  }
}

// A transfer in the colours of its hidden and exposed parts; returns the kind of the first.
function addTransfer(strip, start, end, x0, x1, window, busy, b, table, shade, weight) {
  const {from, scale} = window, hidden = 3 * HIDDEN * SHADES.length + shade, exposed = 3 * EXPOSED * SHADES.length + shade;
  while (b < busy.count && busy.end[b] <= start) ++b;
  let at = start, x = x0, first = -1;
  do {
    const isHidden = b < busy.count && busy.start[b] <= at;
    const until = Math.min(end, b < busy.count ? (isHidden ? busy.end[b] : busy.start[b]) : end);
    const next = until >= end ? x1 : Math.min(x1, (until - from) * scale);
    strip.add(x, next, table, isHidden ? hidden : exposed, weight);
    if (first < 0) first = isHidden ? HIDDEN : EXPOSED;
    if (isHidden) ++b;
    at = until;
    x = next;
  } while (at < end);
  return first;
}

// The most bytes in use within each of `width` pixels.
function memoryColumns(memory, from, perPixel, width) {
  const columns = new Float64Array(width);
  let i = after(memory.time, from);
  let now = i > 0 ? memory.bytes[i - 1] : 0;
  for (let x = 0; x < width; ++x) {
    const until = from + (x + 1) * perPixel;
    let most = now;
    for (; i < memory.count && memory.time[i] <= until; ++i) {
      now = memory.bytes[i];
      if (now > most) most = now;
    }
    columns[x] = most;
  }
  return columns;
}
