// Text: the heads of panels, the tooltip, the drawer with everything about a pinned node.

const ACCESS_NAMES = ['reads', 'writes', 'adds to'];
const PHASE_NAMES = {weight_gradient: 'weight gradient', recompute: 'computed again'};

function field(name, ...value) { return [element('dt', name), element('dd', ...value)]; }

function percentMore(now, before) {
  const change = 100 * (now / before - 1);
  return `${change >= 0 ? '+' : '−'}${Math.abs(change).toFixed(Math.abs(change) < 10 ? 1 : 0)}${NARROW}%`;
}

// The same node on another timeline: {track, index} or null.
function counterpart(model, other, track, index) {
  const label = model.labels[track.events.label[index]], microBatch = track.events.microBatch[index];
  const same = (l) => l.name === label.name && l.phase === label.phase && l.lane === label.lane;
  const rank = other.ranks[track.rank];
  for (const candidate of rank ? rank.tracks : []) {
    if (candidate.lane !== track.lane) continue;
    const {events} = candidate;
    for (let i = 0; i < events.count; ++i)
      if (events.microBatch[i] === microBatch && same(other.labels[events.label[i]])) return {track: candidate, index: i};
  }
  return null;
}

// Equal nodes are counted together: "experts′ 2, shared 3".
function hidingText(model, hiding, limit) {
  const names = hiding.sort((a, b) => b.time - a.time).map(({track, index}) => {
    const m = track.events.microBatch[index];
    return model.labels[track.events.label[index]].short + (m < 0 ? '' : ' ' + m);
  });
  return names.slice(0, limit).join(', ') + (names.length > limit ? `, ${names.length - limit} more` : '');
}

function colourKey(model, label, rank, track, index) {
  const {start, end} = track.events;
  if (!track.communicates) return COLOUR_NAMES[CATEGORY_OF_PHASE[label.phase] ?? OTHER];
  return covered(rank.busy, start[index], end[index]) > 0.5 * (end[index] - start[index]) ? 'hidden' : 'exposed';
}

// {title, facts: dl, lists: [dl rows]}: with short lists for the tooltip, with whole ones for the drawer.
function describe(panel, others, track, index, limit) {
  const {model} = panel, {events} = track, label = model.labels[events.label[index]], rank = model.ranks[track.rank];
  const from = events.start[index], length = events.end[index] - from, m = events.microBatch[index];
  const swatch = element('i.swatch');
  swatch.style.background = `var(--${colourKey(model, label, rank, track, index)})`;
  const title = element('h3', swatch, label.short, m < 0 ? null : element('span.badge', `micro-batch ${m}`));
  const facts = element('dl');
  facts.append(...field('layer', label.layer + (label.unit < 0 ? '' : `, unit ${label.unit}`)));
  facts.append(...field('phase', PHASE_NAMES[label.phase] || label.phase));
  facts.append(...field('where', `rank ${track.rank}, ${track.lane}`));
  facts.append(...field('duration', element('b', timeText(length)), `  from ${momentText(from)}`));
  for (const other of others) {
    const twin = counterpart(model, other.model, track, index);
    if (!twin) continue;
    const before = twin.track.events.end[twin.index] - twin.track.events.start[twin.index];
    facts.append(...field(other.name.toLowerCase(), timeText(before),
                          before > 0 ? `  (here ${percentMore(length, before)})` : ''));
  }
  if (track.communicates) {
    const hidden = covered(rank.busy, from, from + length), share = length > 0 ? hidden / length : 1;
    facts.append(...field('hidden', element('b', shareText(share)),
                          hidden > 0 ? '  behind ' + hidingText(model, model.hiding(track, index), limit) : ''));
    if (hidden < length) facts.append(...field('exposed', timeText(length - hidden)));
  }
  const rate = (amount, text) => length > 0 ? `  (${text(amount / length * 1e9)}/s)` : '';
  if (label.flops > 0) facts.append(...field('FLOPs', countText(label.flops), rate(label.flops, (r) => countText(r) + 'FLOP')));
  if (label.bytes > 0)
    facts.append(...field(track.communicates ? 'sent' : 'bytes', bytesText(label.bytes), rate(label.bytes, bytesText)));

  const lists = element('dl');
  const list = (name, items) => {
    if (!items.length) return;
    const shown = items.slice(0, limit).map((item) => element('div', item));
    if (items.length > limit) shown.push(element('div.muted', `${items.length - limit} more`));
    lists.append(...field(name, ...shown));
  };
  ACCESS_NAMES.forEach((name, access) => list(name, label.uses.filter((use) => use.access === access).map((use) =>
    use.buffer + (use.perMicroBatch ? '@' + m : '') + (use.size ? `  ${bytesText(use.size)}` : ''))));
  list('parameters', label.parameters);
  return {title, facts, lists};
}

function describeMemory(row, time) {
  const {memory} = row.rank, i = after(memory.time, time);
  const facts = element('dl');
  facts.append(...field('in use', element('b', bytesText(i > 0 ? memory.bytes[i - 1] : 0))));
  facts.append(...field('at most', `${bytesText(memory.peak)} at ${momentText(memory.peakTime)}`));
  if (row.rank.model.reserved > 0) facts.append(...field('reserved', bytesText(row.rank.model.reserved)));
  return {title: element('h3', 'memory', element('span.badge', `rank ${row.rank.rank}`)), facts, lists: element('dl')};
}

function describeSpan({span, name, group}) {
  const facts = element('dl');
  facts.append(...field('where', `rank ${group.rank.rank}, from its first node to its last`));
  facts.append(...field('duration', element('b', timeText(span.end - span.start)), `  from ${momentText(span.start)}`));
  return {title: element('h3', name, element('span.badge', `micro-batch ${span.microBatch}`)), facts, lists: element('dl')};
}

// "Step 7.4 ms  Communication 3.1 ms per rank, 93.4 % hidden ...", with a bar of how ranks spend the step.
function fillHead(panel, several) {
  const {model} = panel, {overlap} = model, ranks = model.ranks.length;
  const item = (name, ...value) => element('span.metric', name ? element('span.muted', name) : null, ...value);
  const parts = [];
  if (several) parts.push(element('strong', panel.name));
  parts.push(item('step', element('b', timeText(model.span)), panel.stretch));
  if (overlap.communication > 0) {
    parts.push(item('communication', element('b.hiddenshare', shareText(overlap.shareHidden) + ' hidden'),
                    element('span.muted', `of ${timeText(overlap.communication / ranks)}${ranks > 1 ? ' per rank' : ''}`)));
    const lanes = model.lanes.filter((lane) => lane.communicates && lane.overlap.communication > 0);
    if (lanes.length > 1)
      parts.push(element('span.lanes.muted', lanes.map((l) => `${l.name} ${shareText(l.overlap.shareHidden)}`).join('  ')));
  }
  const bar = element('span.bar');
  const whole = overlap.span || 1;
  for (const [name, colour] of [['compute', 'forward'], ['exposed', 'exposed'], ['idle', 'line']]) {
    const part = element('i');
    part.style.cssText = `width:${100 * overlap[name] / whole}%;background:var(--${colour})`;
    bar.append(part);
  }
  parts.push(item('', bar, element('span', `${shareText(overlap.compute / whole)} compute`),
                  overlap.communication > 0 ? element('span.muted', `${shareText(overlap.exposed / whole)} exposed`) : null,
                  element('span.muted', `${shareText(overlap.idle / whole)} idle`)));
  if (model.peak > 0) {
    parts.push(item('memory', ...(model.reserved > 0 ? [element('b', bytesText(model.reserved)), element('span.muted', 'reserved, at most')] : []),
                    element('b', bytesText(model.peak)), element('span.muted', 'in use')));
  }
  if (model.times) parts.push(element('span.muted', model.times));
  panel.head.replaceChildren(...parts);
}

class Tooltip {
  constructor(root) { this.root = root; }
  show(content, x, y) {
    this.root.replaceChildren(content.title, content.facts, ...(content.lists.childElementCount ? [content.lists] : []));
    this.root.hidden = false;
    const {offsetWidth: w, offsetHeight: h} = this.root;
    const left = x + 16 + w > innerWidth ? x - w - 12 : x + 16, top = Math.min(y + 14, innerHeight - h - 6);
    this.root.style.transform = `translate(${Math.max(4, left)}px,${Math.max(4, top)}px)`;
  }
  hide() { this.root.hidden = true; }
}

const LEGEND = [
  ['forward', 'forward'], ['backward', 'backward'], ['weight', 'weight gradient'], ['update', 'update'], ['other', 'other'],
  ['hidden', 'communication, hidden'], ['exposed', 'communication, exposed'],
];

function fillLegend(root, models) {
  const has = (name) => models.some((model) => model.category.some((kind) =>
    kind === COMMUNICATION ? name === 'hidden' || name === 'exposed' : COLOUR_NAMES[kind] === name));
  for (const [name, text] of LEGEND) {
    if (!has(name)) continue;
    const swatch = element('i.swatch');
    swatch.style.background = `var(--${name})`;
    root.append(element('span', swatch, text));
  }
  if (has('hidden')) root.append(element('span', element('i.swatch.hatched'), 'compute waits'));
  if (models.some((model) => model.ranks.some((rank) => rank.bubble.count)))
    root.append(element('span', element('i.swatch.hatched.bubble'), 'bubble: waits for another stage'));
  if (models.some((model) => model.microBatches > 1)) root.append(element('span.muted', 'shade and number: micro-batch'));
}
