// Tables of where the time goes: by kind of node, and by rank.

function table(heads, rows) {
  const cell = (tag) => (text, i) => element(i ? tag + '.number' : tag, text);
  return element('table', element('thead', element('tr', ...heads.map(cell('th')))),
                 element('tbody', ...rows.map((row) => element('tr', ...row.map(cell('td'))))));
}

// Piece and phase over all layers, ranks and micro-batches: Map of name -> {lane, count, time, hidden}.
function totalsOf(model) {
  const totals = new Map();
  const own = model.labels.map((label) => {
    const key = `${label.short} ${label.lane}`;
    if (!totals.has(key))
      totals.set(key, {name: label.short, phase: PHASE_NAMES[label.phase] || label.phase, lane: label.lane, count: 0, time: 0, hidden: -1});
    return totals.get(key);
  });
  for (const rank of model.ranks)
    for (const {events, communicates} of rank.tracks)
      for (let i = 0; i < events.count; ++i) {
        const total = own[events.label[i]];
        ++total.count;
        total.time += events.end[i] - events.start[i];
        if (communicates) total.hidden = Math.max(0, total.hidden) + covered(rank.busy, events.start[i], events.end[i]);
      }
  return totals;
}

function nodeTable(panels) {
  const totals = panels.map(({model}) => totalsOf(model)), last = panels.length - 1;
  const ranks = panels.map(({model}) => model.ranks.length);
  const entries = [...totals[last]].filter(([, total]) => total.count).sort((a, b) => b[1].time - a[1].time).slice(0, 60);
  const each = panels.length > 1 ? panels.map((panel) => panel.name.toLowerCase()) : ['time per rank'];
  const hides = entries.some(([, total]) => total.hidden >= 0);
  const heads = ['node', 'phase', 'lane', 'nodes', ...each, ...(last ? ['change'] : []), 'of the step', 'mean'];
  if (hides) heads.push('hidden');
  return table(heads, entries.map(([key, total]) => {
    const times = totals.map((map, i) => map.has(key) ? map.get(key).time / ranks[i] : 0);
    return [
      total.name, total.phase, total.lane, wholeText(total.count), ...times.map(timeText),
      ...(last ? [times[0] > 0 ? percentMore(times[1], times[0]) : ''] : []),
      shareText(Math.min(1, times[last] / (panels[last].model.span || 1))), timeText(total.time / total.count),
      ...(hides ? [total.hidden >= 0 && total.time > 0 ? shareText(Math.min(1, total.hidden / total.time)) : ''] : []),
    ];
  }));
}

function rankTable(panels) {
  const heads = ['rank'];  // with two timelines, cells that differ show "plan → actual"
  const transfers = panels.some(({model}) => model.overlap.communication > 0);
  const columns = [
    ['compute', ({overlap}) => timeText(overlap.compute)],
    ['communication', ({overlap}) => timeText(overlap.communication)],
    ['hidden', ({overlap}) => overlap.communication > 0 ? shareText(overlap.shareHidden) : ''],
    ['exposed', ({overlap}) => timeText(overlap.exposed)],
    ['idle', ({overlap}) => timeText(overlap.idle)],
    ['most in use', ({memory}) => memory ? bytesText(memory.peak) : ''],
  ].filter(([name]) => transfers || !['communication', 'hidden', 'exposed'].includes(name));
  heads.push(...columns.map(([name]) => name));
  const most = Math.max(...panels.map(({model}) => model.ranks.length));
  return table(heads, Array.from({length: most}, (_, rank) => [
    String(rank),
    ...columns.map(([, text]) => {
      const both = panels.map(({model}) => model.ranks[rank] ? text(model.ranks[rank]) : '');
      return both[0] === both[both.length - 1] ? both[0] : both.join(' → ');
    }),
  ]));
}
