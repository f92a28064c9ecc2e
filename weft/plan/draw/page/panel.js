// One timeline on the screen: names, axis, lanes and memory on one canvas; the cursor and outlines on a second one above
// it, so that moving the mouse redraws little.

const TEXT_FONT = '11px system-ui, "Segoe UI", "Liberation Sans", sans-serif';
const SMALL_FONT = '10px system-ui, "Segoe UI", "Liberation Sans", sans-serif';
const BOLD_FONT = '600 12px system-ui, "Segoe UI", "Liberation Sans", sans-serif';

class Panel {
  constructor(model, name) {
    this.model = model;
    this.name = name;
    this.scale = 1;  // own nanoseconds per nanosecond of the page
    this.canvas = element('canvas');
    this.overlay = element('canvas');
    this.spacer = element('div.spacer');
    this.stage = element('div.stage', this.canvas, this.overlay);
    this.scroller = element('div.scroller', this.stage, this.spacer);
    this.head = element('div.head');
    this.stretch = element('span.muted');  // note that this timeline is drawn longer than the other
    this.root = element('section.panel', this.head, this.scroller);
    this.layout = {groups: [], height: 0};
    this.strips = document.createElement('canvas');
  }

  // The box of the canvas, in CSS pixels, and what is drawn in it.
  // keepRows: rows keep their height when something below takes part of the room.
  resize(expanded, showMemory, keepRows) {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(300, this.scroller.clientWidth);
    this.height = Math.max(60, this.scroller.clientHeight);
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
      canvas.style.width = this.width + 'px';
      canvas.style.height = this.height + 'px';
    }
    if (!keepRows || !this.room) this.room = this.height - AXIS - 4;
    this.layout = layoutOf(this.model, expanded, showMemory, this.room);
    this.stage.style.height = this.height + 'px';
    this.spacer.style.height = Math.max(0, this.layout.height + AXIS + 4 - this.height) + 'px';
  }

  // Scrolls until a lane is visible.
  reveal(track) {
    const group = this.layout.groups[track.rank], row = group.rows.find((r) => r.kind === 'lane' && r.tracks.includes(track));
    const top = this.scroller.scrollTop, seen = this.height - AXIS;
    if (row && row.y < top) this.scroller.scrollTop = group.y;
    else if (row && row.y + row.h > top + seen) this.scroller.scrollTop = Math.min(group.y, group.y + group.h - seen);
  }

  get lanesWidth() { return this.width - GUTTER; }
  window(view) {  // in own time
    const from = view.from * this.scale, to = view.to * this.scale;
    return {from, to, scale: this.lanesWidth * this.ratio / (to - from)};
  }
  xOf(view, time) {
    const {from, scale} = this.window(view);
    return GUTTER + (time - from) * scale / this.ratio;
  }
  timeAt(view, x) {
    const {from, scale} = this.window(view);
    return from + (x - GUTTER) * this.ratio / scale;
  }

  draw(view, theme, highlight) {
    const context = this.canvas.getContext('2d'), ratio = this.ratio, window = this.window(view);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, this.width, this.height);
    const top = this.scroller.scrollTop, axis = ticksOf(window.from, window.to, this.lanesWidth, 96);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.height - AXIS);
    context.clip();
    context.translate(0, AXIS - top);
    const seen = this.layout.groups.filter((g) => g.y + g.h > top && g.y < top + this.height);
    for (const group of seen) this.drawGround(context, theme, group);
    context.fillStyle = theme.grid;
    for (const tick of axis.ticks) context.fillRect(this.snap(this.xOf(view, tick.time)), top, 1, this.height);
    this.drawLanes(context, theme, seen, window, highlight);
    for (const group of seen)
      for (const row of group.rows)
        if (row.kind === 'memory') this.drawMemory(context, theme, row, window);
        else if (row.kind === 'ribbon') this.drawRibbon(context, theme, row, window, highlight);
    for (const group of seen) this.drawNames(context, theme, group);
    context.restore();
    this.drawAxis(context, theme, view, axis);
  }

  snap(x) { return Math.round(x * this.ratio) / this.ratio; }

  drawGround(context, theme, group) {
    if (group.open) {
      context.fillStyle = theme.line;
      context.fillRect(0, group.y + group.h - 1, this.width, 1);
    } else if (group.rank.rank % 2) {
      context.fillStyle = theme.band;
      context.fillRect(GUTTER, group.y, this.lanesWidth, group.h);
    }
    if (!group.open) return;
    context.fillStyle = theme.band;
    for (const row of group.rows) context.fillRect(GUTTER, row.y, this.lanesWidth, row.h);
  }

  drawLanes(context, theme, seen, window, highlight) {
    const rows = seen.flatMap((group) => group.rows.filter((row) => row.kind === 'lane' && row.tracks.length));
    if (!rows.length) return;
    const width = Math.round(this.lanesWidth * this.ratio);
    if (!this.strip || this.strip.width !== width) this.strip = new Strip(width);
    this.strips.width = width;
    this.strips.height = rows.length;
    const paint = this.strips.getContext('2d'), image = paint.createImageData(width, rows.length);
    const texts = [];
    rows.forEach((row, i) => {
      const named = row.group.open && row.h >= 12 ? [] : null;
      this.strip.clear();
      for (const track of row.tracks)
        addTrack(this.strip, track, row.group.rank, this.model, window, theme, highlight, named, 16 * this.ratio);
      this.strip.write(image.data, i);
      if (named) texts.push([row, named]);
    });
    paint.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (const row of rows)
      if (!row.communicates && (row.group.open || this.model.stages > 1) && row.lane === 'compute') this.drawWaiting(context, theme, row, window);
    rows.forEach((row, i) => context.drawImage(this.strips, 0, i, width, 1, GUTTER, row.y, width / this.ratio, row.h));
    for (const [row, named] of texts) this.drawTexts(context, theme, row, named);
  }

  // Hatched: nothing computes while waiting for a transfer, or in grey, for another stage.
  drawWaiting(context, theme, row, window) {
    const {exposed, bubble} = row.group.rank, scale = window.scale / this.ratio;
    for (const [times, hatch, name] of [[exposed, theme.hatch, ''], [bubble, theme.bubbleHatch, 'bubble']]) {
      context.save();
      context.fillStyle = context.createPattern(hatch, 'repeat');
      context.font = SMALL_FONT;
      context.textBaseline = 'middle';
      context.textAlign = 'center';
      let last = -1;
      for (let i = after(times.end, window.from); i < times.count && times.start[i] < window.to; ++i) {
        const x0 = Math.max(0, (times.start[i] - window.from) * scale);
        const x1 = Math.min(this.lanesWidth, (times.end[i] - window.from) * scale);
        if (x1 - x0 < 1.5 || x0 < last) continue;
        context.fillRect(GUTTER + x0, row.y, x1 - x0, row.h);
        last = x1;
        if (!name || row.h < 12 || widthOf(context, name) > x1 - x0 - 8) continue;
        const hatching = context.fillStyle, wide = widthOf(context, name) / 2 + 3, middle = GUTTER + (x0 + x1) / 2;
        context.fillStyle = theme.band;
        context.fillRect(middle - wide, row.y + 1, 2 * wide, row.h - 2);
        context.fillStyle = theme.muted;
        context.fillText(name, middle, row.y + row.h / 2 + 0.5);
        context.fillStyle = hatching;
      }
      context.restore();
    }
  }

  drawTexts(context, theme, row, texts) {
    const {events} = row.tracks[0], labels = this.model.labels, ratio = this.ratio;
    context.font = row.h < 17 ? SMALL_FONT : TEXT_FONT;
    context.textBaseline = 'middle';
    context.textAlign = 'center';
    const middle = row.y + row.h / 2 + 0.5;
    for (const text of texts) {
      const x0 = Math.max(0, text.x0 / ratio), x1 = Math.min(this.lanesWidth, text.x1 / ratio), room = x1 - x0 - 6;
      if (room < 6) continue;
      if (!text.bright) continue;
      const label = labels[events.label[text.index]], m = events.microBatch[text.index];
      const number = m < 0 || this.model.microBatches < 2 ? '' : String(m);
      const choice = shortened(context, label.short, number, room);
      if (!choice) continue;
      context.fillStyle = theme.ink[text.kind * SHADES.length + text.shade];
      context.fillText(choice, GUTTER + (x0 + x1) / 2, middle);
    }
    context.textAlign = 'left';
  }

  // Which micro-batch when: forwards above, backwards below.
  drawRibbon(context, theme, row, window, highlight) {
    const scale = window.scale / this.ratio, half = row.h / 2;
    context.font = '9px system-ui, "Liberation Sans", sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'center';
    [['forward', 'F', FORWARD], ['backward', 'B', BACKWARD]].forEach(([name, letter, kind], i) => {
      const {list, end} = row.rank[name], y = row.y + half * i;
      for (let s = after(end, window.from); s < list.length && list[s].start < window.to; ++s) {
        const x0 = Math.max(0, this.snap((list[s].start - window.from) * scale));
        const x1 = Math.min(this.lanesWidth, this.snap((list[s].end - window.from) * scale) - 1);
        const m = list[s].microBatch, colour = 3 * (kind * SHADES.length + shadeOf(m));
        const bright = !highlight || highlight.microBatch === null || highlight.microBatch === m;
        context.fillStyle = cssOf([...theme.table.subarray(colour, colour + 3)], bright ? 0.24 : 0.06);
        context.fillRect(GUTTER + x0, y, Math.max(0.5, x1 - x0), half - 1);
        if (widthOf(context, letter + m) > x1 - x0 - 2) continue;  // whole or not at all
        context.fillStyle = bright ? theme.text : theme.muted;
        context.fillText(letter + m, GUTTER + (x0 + x1) / 2, y + half / 2);
      }
    });
    context.textAlign = 'left';
  }

  drawMemory(context, theme, row, window) {
    const {memory} = row.rank, width = Math.floor(this.lanesWidth), peak = this.model.peak || 1;
    const columns = memoryColumns(memory, window.from, this.ratio / window.scale, width);
    const last = Math.min(width, Math.ceil((this.model.span - window.from) * window.scale / this.ratio));
    const bottom = row.y + row.h, high = row.h - 3, yOf = (bytes) => bottom - high * bytes / peak;
    if (last <= 0) return;
    context.beginPath();
    context.moveTo(GUTTER, bottom);
    for (let x = 0; x < last; ++x) {
      context.lineTo(GUTTER + x, yOf(columns[x]));
      context.lineTo(GUTTER + x + 1, yOf(columns[x]));
    }
    context.lineTo(GUTTER + last, bottom);
    context.fillStyle = cssOf(theme.rgb.memory, 0.18);
    context.fill();
    context.beginPath();
    for (let x = 0; x < last; ++x) {
      context.lineTo(GUTTER + x, yOf(columns[x]));
      context.lineTo(GUTTER + x + 1, yOf(columns[x]));
    }
    context.strokeStyle = theme.memory;
    context.lineWidth = 1;
    context.stroke();
    const at = (memory.peakTime - window.from) * window.scale / this.ratio;
    if (at < 0 || at > width) return;
    context.fillStyle = theme.memory;
    context.beginPath();
    context.arc(GUTTER + at, yOf(memory.peak), 2.5, 0, 7);
    context.fill();
  }

  drawNames(context, theme, group) {
    const {name, overlap, memory} = group.rank;
    context.fillStyle = theme.ground;
    context.fillRect(0, group.y, GUTTER, group.h - (group.open ? 1 : 0));
    context.textBaseline = 'middle';
    const transfers = overlap.communication > 0;
    if (!group.open) {
      const middle = group.y + group.h / 2 + 0.5;
      context.font = group.h < 11 ? '9px system-ui, "Liberation Sans", sans-serif' : SMALL_FONT;
      context.fillStyle = theme.text;
      context.fillText(name, 12, middle);
      context.fillStyle = theme.muted;
      if (this.model.stages > 1) {
        if (group.h >= 32) context.fillText(shareText(overlap.idle / overlap.span) + ' bubble', 12, middle + 15);
        return;
      }
      if (!transfers) return;
      context.textAlign = 'right';
      context.fillText(shareText(overlap.shareHidden) + ' hidden', GUTTER - 12, middle);
      context.textAlign = 'left';
      return;
    }
    const middle = group.y + 14;
    context.font = BOLD_FONT;
    context.fillStyle = theme.text;
    context.fillText(name, 12, middle);
    context.font = SMALL_FONT;
    const lines = [];
    if (transfers) lines.push([shareText(overlap.shareHidden) + ' hidden', theme.muted]);
    if (this.model.stages > 1) lines.push([shareText(overlap.idle / overlap.span) + ' bubble', theme.muted]);
    if (transfers && overlap.exposed > 0) lines.push([timeText(overlap.exposed) + ' exposed', theme.exposed]);
    lines.forEach(([text, colour], i) => {
      const y = middle + 17 + 14 * i;
      if (y + 6 > group.y + group.h) return;
      context.fillStyle = colour;
      context.fillText(text, 12, y);
    });
    context.textAlign = 'right';
    for (const row of group.rows) {
      context.fillStyle = theme.muted;
      const y = row.y + row.h / 2 + 0.5;
      if (row.kind !== 'memory') {
        context.fillText(row.name, GUTTER - 10, y);
      } else if (row.h < 24) {
        context.fillText(bytesText(memory.peak), GUTTER - 10, y);
      } else {
        context.fillText('memory', GUTTER - 10, row.y + 8);
        context.fillText('≤ ' + bytesText(memory.peak), GUTTER - 10, row.y + 20);
      }
    }
    context.textAlign = 'left';
  }

  drawAxis(context, theme, view, axis) {
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = theme.line;
    context.fillRect(0, AXIS - 1, this.width, 1);
    context.fillRect(GUTTER - 1, 0, 1, this.height);
    context.font = SMALL_FONT;
    context.textBaseline = 'middle';
    for (const tick of axis.ticks) {
      const x = this.snap(this.xOf(view, tick.time));
      if (x < GUTTER - 1) continue;
      context.fillStyle = theme.line;
      context.fillRect(x, AXIS - 7, 1, 7);
      context.fillStyle = theme.muted;
      if (x + 4 + widthOf(context, tick.text) < this.width) context.fillText(tick.text, x + 4, AXIS / 2 - 1);
    }
  }

  // What is at a point: {row, group, track, index} of an event, {row, memory: true}, or {group} of the names.
  hit(view, x, y) {
    if (y < AXIS || y >= this.height) return null;
    const found = rowAt(this.layout, y - AXIS + this.scroller.scrollTop);
    if (!found) return null;
    if (x < GUTTER) return {group: found.group};
    const {row, group} = found, time = this.timeAt(view, x), slack = 2 * this.ratio / this.window(view).scale;
    if (!row) return {group, time, lanes: true};
    if (row.kind === 'memory') return {group, row, memory: true, time};
    if (row.kind === 'ribbon') {
      const below = y - AXIS + this.scroller.scrollTop > row.y + row.h / 2, name = below ? 'backward' : 'forward';
      const span = group.rank[name].list[after(group.rank[name].end, time)];
      return span && span.start <= time ? {group, row, span, name, time} : {group, row, time, lanes: true};
    }
    let best = null, distance = slack;
    for (const track of row.tracks) {
      const {start, end, count} = track.events, i = after(end, time);
      for (const index of [i - 1, i]) {
        if (index < 0 || index >= count) continue;
        const away = Math.max(0, start[index] - time, time - end[index]);
        if (away < distance || (away === 0 && !best)) best = {group, row, track, index, time}, distance = away;
      }
    }
    return best || {group, row, time, lanes: true};
  }

  boxOf(view, track, index) {  // of an event on the canvas, or null if it is not visible
    const group = this.layout.groups[track.rank];
    const row = group && group.rows.find((r) => r.kind === 'lane' && r.tracks.includes(track));
    if (!row) return null;
    const x0 = this.xOf(view, track.events.start[index]), x1 = this.xOf(view, track.events.end[index]);
    const y = row.y + AXIS - this.scroller.scrollTop;
    if (x1 < GUTTER || x0 > this.width || y + row.h < AXIS || y > this.height) return null;
    const left = Math.max(GUTTER, x0);
    return {x: left, y, w: Math.max(2, Math.min(this.width, x1) - left), h: row.h};
  }

  // outlines: [{track, index, colour, width}]; cursor: time on the page's axis or null; range: being selected.
  drawOverlay(view, theme, outlines, cursor, range) {
    const context = this.overlay.getContext('2d'), ratio = this.ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(GUTTER, AXIS, this.lanesWidth, this.height - AXIS);
    context.clip();
    for (const {track, index, colour, width} of outlines) {
      const box = this.boxOf(view, track, index);
      if (!box) continue;
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.strokeRect(box.x - 0.5, box.y - 0.5, box.w, box.h + 1);
    }
    context.restore();
    if (range) this.drawRange(context, theme, view, range);
    if (cursor === null) return;
    const x = this.snap(this.xOf(view, cursor * this.scale));
    if (x < GUTTER) return;
    context.fillStyle = cssOf(theme.rgb.text, 0.35);
    context.fillRect(x, AXIS, 1, this.height);
    const pixel = this.ratio / this.window(view).scale;  // limits the digits to what is visible
    this.drawTag(context, theme, x, momentText(cursor * this.scale, Math.pow(10, Math.max(0, Math.floor(Math.log10(pixel))))));
  }

  drawTag(context, theme, x, text) {
    context.font = SMALL_FONT;
    context.textBaseline = 'middle';
    const w = widthOf(context, text) + 10, left = Math.max(GUTTER, Math.min(this.width - w, x - w / 2));
    context.fillStyle = theme.text;
    context.beginPath();
    context.roundRect(left, 2, w, AXIS - 5, 3);
    context.fill();
    context.fillStyle = theme.ground;
    context.fillText(text, left + 5, AXIS / 2);
  }

  drawRange(context, theme, view, range) {
    const x0 = this.xOf(view, range.from * this.scale), x1 = this.xOf(view, range.to * this.scale);
    context.fillStyle = cssOf(theme.rgb.accent, 0.14);
    context.fillRect(x0, AXIS, x1 - x0, this.height);
    this.drawTag(context, theme, (x0 + x1) / 2, timeText((range.to - range.from) * this.scale));
  }
}

const fitting = (context, choices, room) => choices.find((text) => text && widthOf(context, text) <= room);

// "exper… 3", or the number alone.
function shortened(context, name, number, room) {
  const tail = number && ' ' + number;
  for (let length = name.length; length >= 2; --length) {
    const text = (length < name.length ? name.slice(0, length) + '…' : name) + tail;
    if (widthOf(context, text) <= room) return text;
  }
  return fitting(context, [number], room);
}

const textWidths = new Map();
function widthOf(context, text) {
  const key = context.font + text;
  let width = textWidths.get(key);
  if (width === undefined) textWidths.set(key, width = context.measureText(text).width);
  return width;
}
