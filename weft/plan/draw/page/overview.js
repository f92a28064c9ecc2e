// The whole step in a strip: for every moment, the share of ranks that compute (by phase) or wait for a transfer. A
// window over it shows, and sets, what the panels show.

class Overview {
  constructor(panels, onView) {
    this.panels = panels;
    this.canvas = element('canvas');
    this.root = element('div.overview', this.canvas);
    this.onView = onView;
    this.cache = null;
    this.root.addEventListener('pointerdown', (event) => this.grab(event));
  }

  resize(span) {
    this.span = span;
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.root.clientWidth;
    this.height = this.root.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.canvas.style.width = this.width + 'px';
    this.canvas.style.height = this.height + 'px';
    this.cache = null;
  }

  // Shares by bin and colour: [kind][bin].
  shares(panel, bins) {
    const {model} = panel, scale = bins / (this.span * panel.scale);
    const shares = COLOUR_NAMES.map(() => new Float32Array(bins));
    const add = (target, from, to) => {
      let x0 = from * scale, x1 = Math.min(bins, to * scale);
      for (let bin = Math.floor(x0); bin < x1; ++bin) target[bin] += Math.min(x1, bin + 1) - Math.max(x0, bin);
    };
    const times = new Map();  // how many ranks share the same arrays
    for (const rank of model.ranks) {
      for (const track of rank.tracks) if (!track.communicates) times.set(track.events, (times.get(track.events) || 0) + 1);
      times.set(rank.exposed, (times.get(rank.exposed) || 0) + 1);
    }
    for (const [list, count] of times) {
      const own = count > 1 ? COLOUR_NAMES.map(() => new Float32Array(bins)) : shares;
      for (let i = 0; i < list.count; ++i)
        add(own[list.label ? model.category[list.label[i]] : EXPOSED], list.start[i], list.end[i]);
      if (count > 1) own.forEach((bin, kind) => bin.forEach((value, x) => shares[kind][x] += value * count));
    }
    return shares;
  }

  paint(theme) {
    const bins = Math.max(1, Math.round((this.width - GUTTER) * this.ratio)), image = document.createElement('canvas');
    image.width = this.canvas.width;
    image.height = this.canvas.height;
    const context = image.getContext('2d'), count = this.panels.length, gap = 4 * this.ratio;
    const high = (image.height - gap * (count + 1)) / count;
    this.panels.forEach((panel, p) => {
      const shares = this.shares(panel, bins), top = gap + p * (high + gap), ranks = panel.model.ranks.length;
      context.fillStyle = theme.band;
      context.fillRect(GUTTER * this.ratio, top, bins, high);
      const base = new Float32Array(bins).fill(top + high);
      for (const kind of [FORWARD, BACKWARD, WEIGHT, UPDATE, OTHER, EXPOSED]) {
        context.fillStyle = theme[COLOUR_NAMES[kind]];
        for (let x = 0; x < bins; ++x) {
          const tall = Math.min(high * shares[kind][x] / ranks, base[x] - top);
          if (tall < 0.05) continue;
          context.fillRect(GUTTER * this.ratio + x, base[x] - tall, 1, tall);
          base[x] -= tall;
        }
      }
    });
    return image;
  }

  draw(view, theme) {
    if (!this.cache || this.cacheTheme !== theme) this.cache = this.paint(theme);
    this.cacheTheme = theme;
    const context = this.canvas.getContext('2d'), ratio = this.ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.cache, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = SMALL_FONT;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    context.fillStyle = theme.muted;
    const high = this.height / this.panels.length;
    this.panels.forEach((panel, p) =>
      context.fillText(this.panels.length > 1 ? panel.name : panel.model.ranks.length > 1 ? 'all ranks' : 'step', GUTTER - 10, high * (p + 0.5)));
    context.textAlign = 'left';
    const [x0, x1] = [view.from, view.to].map((time) => this.xOf(time));
    context.fillStyle = cssOf(theme.rgb.ground, 0.72);
    context.fillRect(GUTTER, 0, x0 - GUTTER, this.height);
    context.fillRect(x1, 0, this.width - x1, this.height);
    context.strokeStyle = theme.accent;
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.75, 0.75, Math.max(2, x1 - x0 - 1.5), this.height - 1.5);
  }

  xOf(time) { return GUTTER + Math.max(0, Math.min(1, time / this.span)) * (this.width - GUTTER); }
  timeAt(x) { return (x - GUTTER) / (this.width - GUTTER) * this.span; }

  // Inside the window: move it. Outside it, or if it covers the whole step: choose a new one.
  grab(event) {
    const view = {...this.view()}, begin = this.timeAt(event.offsetX), left = this.root.getBoundingClientRect().left;
    const whole = view.to - view.from > 0.98 * this.span;
    const moves = !whole && begin >= view.from && begin <= view.to;
    const move = (e) => {
      const now = this.timeAt(e.clientX - left), shift = now - begin;
      if (moves) this.onView(view.from + shift, view.to + shift);
      else if (Math.abs(shift) > this.span * 0.002) this.onView(Math.min(begin, now), Math.max(begin, now));
    };
    const stop = () => {
      window.removeEventListener('pointermove', move);
      window.removeEventListener('pointerup', stop);
    };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', stop);
    event.preventDefault();
  }
}
