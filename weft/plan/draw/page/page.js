// The page's state, and what the mouse and the keys do to it.

class Page {
  constructor(facts, bytes) {
    const names = facts.timelines.length > 1 ? ['Plan', 'Actual'] : [''];
    this.panels = facts.timelines.map((timeline, i) => new Panel(new TimelineModel(timeline, bytes), names[i]));
    this.models = this.panels.map((panel) => panel.model);
    this.span = Math.max(1, ...this.models.map((model) => model.span));
    this.view = {from: 0, to: this.span};
    this.ranks = Math.max(...this.models.map((model) => model.ranks.length));
    // Stages of a pipeline are under each other, so that one sees who waits for whom.
    const open = this.ranks <= 8 && (this.ranks <= 2 || !this.models.some((model) => model.stages > 1));
    this.expanded = new Set(open ? Array(this.ranks).keys() : []);
    this.showMemory = true;
    this.pinned = null;   // {panel, track, index}
    this.mode = 'micro-batch';
    this.search = '';
    this.hover = null;    // {panel, hit}
    this.cursor = null;   // time on the page's axis
    this.range = null;
    this.frames = 0;
    this.tooltip = new Tooltip(document.getElementById('tip'));
    this.overview = new Overview(this.panels, (from, to) => this.setView(from, to));
    this.overview.view = () => this.view;
    this.build();
    // On one scale, a much shorter timeline would be a thin stripe.
    this.alignEnds(this.models.some((model) => model.span < this.span / 1.5));
    this.readFragment();
    this.setTheme();
    this.resize();
    // With few lanes there is room left for the tables.
    const [first] = this.panels;
    if (this.panels.length === 1 && this.span > 1 && first.height - AXIS - first.layout.height > 240) this.toggleSummary();
  }

  build() {
    const by = (id) => document.getElementById(id), several = this.panels.length > 1, [model] = this.models;
    document.querySelector('h1').textContent = model.title;
    const parts = [`${wholeText(this.ranks)} ${this.ranks > 1 ? 'ranks' : 'rank'}`];
    if (model.microBatches) parts.push(`${model.microBatches} micro-batch${model.microBatches > 1 ? 'es' : ''}`);
    by('about').textContent = [...(model.about ? [model.about] : parts), `${wholeText(model.events)} nodes`].join(' · ');
    this.overview.root.classList.toggle('two', several);
    by('overview').append(this.overview.root);
    for (const panel of this.panels) {
      fillHead(panel, several);
      by('panels').append(panel.root);
      listenToPanel(this, panel);
    }
    if (!this.models.some((m) => m.events)) by('panels').replaceChildren(element('p.nothing', 'This timeline has no events.'));
    fillLegend(by('legend'), this.models);
    by('in').onclick = () => this.zoom(1 / 1.6);
    by('out').onclick = () => this.zoom(1.6);
    by('fit').onclick = () => this.fit();
    by('help').onclick = () => by('keys').showModal();
    by('ranks').onclick = () => this.toggleRanks();
    by('summary').onclick = () => this.toggleSummary();
    by('same').hidden = !several;
    by('same').onclick = () => {
      this.alignEnds(!this.aligned);
      this.resize();
    };
    by('search').oninput = (event) => {
      this.search = event.target.value.trim().toLowerCase();
      this.setHighlight();
    };
    by('search').onkeydown = (event) => event.key === 'Enter' && this.nextMatch(event.shiftKey ? -1 : 1);
    listenToKeys(this);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', () => this.setTheme());
    window.addEventListener('resize', () => this.resize());
    this.scheme = scheme;
  }

  // "#scheme=dark&from=0.001&to=0.002" (seconds).
  readFragment() {
    const wish = new URLSearchParams(location.hash.slice(1));
    this.wishedScheme = wish.get('scheme');
    if (wish.has('from') && wish.has('to')) this.setView(1e9 * wish.get('from'), 1e9 * wish.get('to'));
  }

  setTheme() {
    document.documentElement.dataset.scheme = this.wishedScheme || (this.scheme.matches ? 'dark' : 'light');
    this.theme = new Theme();
    this.redraw();
  }

  resize(keepRows = false) {
    for (const panel of this.panels) panel.resize(this.expanded, this.showMemory, keepRows);
    document.getElementById('ranks').textContent = this.expanded.size ? 'Compact' : 'Expand';
    this.overview.resize(this.span);
    this.redraw();
  }

  redraw(overlayOnly = false) {
    this.stale = this.stale || !overlayOnly;
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (this.stale) this.draw();
      this.stale = false;
      this.drawOverlay();
    });
  }

  draw() {
    const begin = performance.now();
    this.panels.forEach((panel) => panel.draw(this.view, this.theme, panel.highlight || null));
    this.overview.draw(this.view, this.theme);
    this.lastFrame = performance.now() - begin;
    ++this.frames;
  }

  drawOverlay() {
    for (const panel of this.panels) {
      const outlines = [];
      const outline = ({track, index}, width) => {
        if (track.communicates)
          for (const other of panel.model.hiding(track, index).slice(0, 200))
            outlines.push({...other, colour: this.theme.text, width: 1});
        outlines.push({track, index, colour: this.theme.text, width});
      };
      if (this.pinned && this.pinned.panel === panel) outline(this.pinned, 2);
      else if (panel.twin) outline(panel.twin, 1.5);
      const hover = this.hover && this.hover.panel === panel && this.hover.hit.track ? this.hover.hit : null;
      if (hover) outline(hover, 1.5);
      panel.drawOverlay(this.view, this.theme, outlines, this.cursor, this.range);
    }
  }

  setView(from, to) {
    const length = Math.min(Math.max(to - from, 20), this.span);  // no shorter than 20 ns
    if (to - from !== length) from = (from + to - length) / 2;
    from = Math.max(0, Math.min(this.span - length, from));
    this.view = {from, to: from + length};
    this.redraw();
  }
  fit() { this.setView(0, this.span); }
  zoom(factor, at = this.cursor ?? (this.view.from + this.view.to) / 2) {
    const {from, to} = this.view;
    // The point under the cursor stays in place, except at the widest zoom.
    this.setView(at - (at - from) * factor, at + (to - at) * factor);
  }
  move(share) {
    const by = share * (this.view.to - this.view.from);
    this.setView(this.view.from + by, this.view.to + by);
  }
  scrollBy(pixels) { this.panels[0].scroller.scrollTop += pixels; }

  toggleRanks() {
    if (this.expanded.size) this.expanded.clear();
    else for (let rank = 0; rank < this.ranks; ++rank) this.expanded.add(rank);
    this.resize(Boolean(this.pinned));
  }
  toggleRank(rank) {
    if (!this.expanded.delete(rank)) this.expanded.add(rank);
    this.resize(Boolean(this.pinned));
  }
  // Every timeline over the whole width, or all on the same time scale.
  alignEnds(aligned) {
    this.aligned = aligned;
    document.getElementById('same').setAttribute('aria-pressed', aligned);
    for (const panel of this.panels) {
      panel.scale = aligned && panel.model.span > 0 ? panel.model.span / this.span : 1;
      panel.stretch.textContent = panel.scale < 1 ? `drawn ${(1 / panel.scale).toFixed(1)} times as long` : '';
    }
  }

  toggleSummary() {
    const tables = document.getElementById('tables');
    tables.hidden = !tables.hidden;
    document.getElementById('summary').setAttribute('aria-pressed', !tables.hidden);
    if (!tables.childElementCount) tables.append(nodeTable(this.panels), rankTable(this.panels));
    this.resize();
  }

  pin(panel, track, index) {
    this.pinned = track ? {panel, track, index} : null;
    // The same node on the other timeline is outlined there.
    for (const other of this.panels)
      other.twin = track && other !== panel ? counterpart(panel.model, other.model, track, index) : null;
    this.setHighlight();
    this.showDrawer();
  }
  step(by) {
    const index = this.pinned.index + by, {panel, track} = this.pinned;
    if (index < 0 || index >= track.events.count) return;
    this.pin(panel, track, index);
    panel.reveal(track);
    const from = track.events.start[index] / panel.scale, to = track.events.end[index] / panel.scale;
    const length = this.view.to - this.view.from;
    if (from < this.view.from || to > this.view.to) this.setView((from + to - length) / 2, (from + to + length) / 2);
  }
  zoomToPinned() {
    const {panel, track, index} = this.pinned, from = track.events.start[index] / panel.scale;
    const to = track.events.end[index] / panel.scale, margin = Math.max(to - from, 1) * 4;
    this.setView(from - margin, to + margin);
  }

  // A search takes precedence over the pinned node.
  setHighlight() {
    const pinned = this.pinned && this.pinned.track.events;
    const label = pinned && this.pinned.panel.model.labels[pinned.label[this.pinned.index]];
    const microBatch = pinned && pinned.microBatch[this.pinned.index];
    for (const panel of this.panels) {
      const select = (test) => Uint8Array.from(panel.model.labels, test);
      if (this.search)
        panel.highlight = {microBatch: null, labels: select((l) => this.matches(l))};
      else if (!pinned || this.mode === 'nothing')
        panel.highlight = null;
      else if (this.mode === 'micro-batch')
        panel.highlight = microBatch < 0 ? null : {microBatch, labels: null};
      else if (this.mode === 'unit')
        panel.highlight = {microBatch: null, labels: select((l) => l.unit === label.unit)};
      else
        panel.highlight = {microBatch: null, labels: select((l) => l.name === label.name)};
    }
    this.redraw();
  }
  matches(label) { return `${label.name} ${label.short} ${label.phase} ${label.lane}`.toLowerCase().includes(this.search); }

  // The next node that a search finds, after the pinned one, on the first rank that has any.
  nextMatch(by) {
    if (!this.search) return;
    const panel = this.pinned ? this.pinned.panel : this.panels[0], {highlight, model} = panel;
    const after = this.pinned ? this.pinned.track.events.start[this.pinned.index] : -1;
    let best = null;
    for (const track of model.ranks[this.pinned ? this.pinned.track.rank : 0].tracks)
      for (let i = 0; i < track.events.count; ++i) {
        const start = track.events.start[i];
        if (!highlight.labels[track.events.label[i]] || (start - after) * by <= 0) continue;
        if (!best || (start - best.track.events.start[best.index]) * by < 0) best = {track, index: i};
      }
    if (!best) return;
    this.pin(panel, best.track, best.index);
    this.step(0);
  }

  showDrawer() {
    const drawer = document.getElementById('drawer');
    if (drawer.hidden === Boolean(this.pinned)) {
      drawer.hidden = !this.pinned;
      requestAnimationFrame(() => {  // when the drawer has its size
        this.resize(true);
        if (this.pinned) this.pinned.panel.reveal(this.pinned.track);
      });
    }
    if (!this.pinned) return;
    const {panel, track, index} = this.pinned;
    const {title, facts, lists} = describe(panel, this.panels.filter((p) => p !== panel), track, index, 60);
    const modes = element('span.buttons', ...['micro-batch', 'unit', 'node', 'nothing'].map((mode) => {
      const button = element('button', mode);
      button.setAttribute('aria-pressed', mode === this.mode);
      button.onclick = () => {
        this.mode = mode;
        this.pin(panel, track, index);
      };
      return button;
    }));
    const close = element('button.close', '×');
    close.title = 'Let go (esc)';
    close.onclick = () => this.pin(null);
    drawer.replaceChildren(element('div.title', title, element('span.muted', 'highlight'), modes), close, facts, lists);
  }
}

function listenToPanel(page, panel) {
  const at = (event) => {
    const box = panel.stage.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const time = (x) => panel.timeAt(page.view, x) / panel.scale;
  const point = (event) => {
    const [x, y] = at(event), hit = panel.hit(page.view, x, y);
    page.cursor = x >= GUTTER ? time(x) : null;
    page.hover = hit && (hit.track || hit.memory) ? {panel, hit} : null;
    panel.stage.style.cursor = hit && hit.group && x < GUTTER ? 'pointer' : 'default';
    if (hit && hit.track)
      page.tooltip.show(describe(panel, page.panels.filter((p) => p !== panel), hit.track, hit.index, 6), event.clientX, event.clientY);
    else if (hit && hit.span)
      page.tooltip.show(describeSpan(hit), event.clientX, event.clientY);
    else if (hit && hit.memory)
      page.tooltip.show(describeMemory(hit.row, hit.time), event.clientX, event.clientY);
    else
      page.tooltip.hide();
    page.redraw(true);
  };
  panel.stage.addEventListener('pointermove', (event) => event.buttons || point(event));
  panel.stage.addEventListener('pointerleave', () => {
    page.hover = page.cursor = null;
    page.tooltip.hide();
    page.redraw(true);
  });
  panel.stage.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    const [x0, y0] = at(event), view = page.view, top = panel.scroller.scrollTop, begin = time(x0), chooses = event.shiftKey;
    let moved = false;
    const move = (e) => {
      const [x, y] = at(e);
      if (!moved && Math.hypot(x - x0, y - y0) < 4) return;
      moved = true;
      page.tooltip.hide();
      if (chooses) {
        const now = Math.max(0, Math.min(page.span, time(x)));
        page.range = {from: Math.min(begin, now), to: Math.max(begin, now)};
        return page.redraw(true);
      }
      panel.stage.style.cursor = 'grabbing';
      const shift = (x0 - x) / panel.lanesWidth * (view.to - view.from);
      page.setView(view.from + shift, view.to + shift);
      panel.scroller.scrollTop = top + y0 - y;
    };
    const stop = (e) => {
      window.removeEventListener('pointermove', move);
      window.removeEventListener('pointerup', stop);
      if (page.range) page.setView(page.range.from, page.range.to);
      page.range = null;
      if (!moved) click(e);
      point(e);
    };
    const click = (e) => {
      const [x, y] = at(e), hit = panel.hit(page.view, x, y);
      if (hit && hit.group && x < GUTTER) page.toggleRank(hit.group.rank.rank);
      else if (hit && hit.track) page.pin(panel, hit.track, hit.index);
      else if (hit && hit.span) page.pin(panel, hit.span.track, hit.span.index);
      else page.pin(null);
    };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', stop);
  });
  panel.stage.addEventListener('dblclick', (event) => at(event)[0] >= GUTTER && page.fit());
  panel.stage.addEventListener('wheel', (event) => {
    const [x] = at(event), unit = event.deltaMode ? 18 : 1;
    if (x < GUTTER || (event.shiftKey && !event.deltaX)) {
      if (event.shiftKey) panel.scroller.scrollTop += event.deltaY * unit;
      if (event.shiftKey) event.preventDefault();
      return;
    }
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return page.move(event.deltaX * unit / panel.lanesWidth);
    page.zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * unit)) * 0.0022), time(x));
    point(event);
  }, {passive: false});
  panel.scroller.addEventListener('scroll', () => {
    for (const other of page.panels) {  // the same ranks on both
      const most = (p) => Math.max(1, p.scroller.scrollHeight - p.scroller.clientHeight);
      const wanted = panel.scroller.scrollTop / most(panel) * most(other);
      if (other !== panel && Math.abs(other.scroller.scrollTop - wanted) > 1.5) other.scroller.scrollTop = wanted;
    }
    page.redraw();
  });
}

function listenToKeys(page) {
  const actions = {
    w: () => page.zoom(1 / 1.35), s: () => page.zoom(1.35), '+': () => page.zoom(1 / 1.35), '=': () => page.zoom(1 / 1.35),
    '-': () => page.zoom(1.35), a: () => page.move(-0.15), d: () => page.move(0.15), ArrowLeft: () => page.move(-0.15),
    ArrowRight: () => page.move(0.15), ArrowUp: () => page.scrollBy(-60), ArrowDown: () => page.scrollBy(60),
    0: () => page.fit(), Home: () => page.fit(), e: () => page.toggleRanks(),
    f: () => page.pinned ? page.zoomToPinned() : page.fit(),
    '[': () => page.pinned && page.step(-1), ']': () => page.pinned && page.step(1),
    t: () => page.toggleSummary(),
    m: () => {
      page.showMemory = !page.showMemory;
      page.resize();
    },
    '/': () => document.getElementById('search').focus(),
    '?': () => document.getElementById('keys').showModal(),
    Escape: () => page.pin(null),
  };
  window.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.tagName === 'INPUT') {
      if (event.key !== 'Escape') return;
      event.target.value = page.search = '';
      event.target.blur();
      return page.setHighlight();
    }
    const action = actions[event.key];
    if (!action || document.getElementById('keys').open) return;
    event.preventDefault();
    action();
  });
}

// For tests and the console.
window.timelinePage = new Page(JSON.parse(document.getElementById('facts').textContent),
                               bytesOfBase64(document.getElementById('blocks').textContent));
