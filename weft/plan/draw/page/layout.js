// Where ranks and lanes are on a panel: an expanded rank has a row for each lane and for its memory, a compact one two
// thin rows, so that 64 ranks fit on a screen; a stage of a pipeline has also the numbers of its micro-batches.

const GUTTER = 168;  // pixels: names left of the lanes
const AXIS = 22;     // pixels: the time axis above them

// expanded: Set of ranks. room: available pixels.
function layoutOf(model, expanded, showMemory, room) {
  const rowsOf = (rank) => {
    const own = new Set(rank.tracks.map((track) => track.lane));
    // A lane that some rank uses has a row on all, so that ranks can be compared; further rows only where needed.
    const rows = [];
    for (const lane of model.lanes) {
      const tracks = rank.tracks.filter((track) => track.lane === lane.name);
      for (const track of tracks.length ? tracks : [null])
        rows.push({kind: 'lane', lane: lane.name, communicates: lane.communicates, tracks: track ? [track] : [],
                   name: track && track.row ? '' : lane.name, empty: !own.has(lane.name)});
    }
    if (model.microBatches > 1) rows.unshift({kind: 'ribbon', name: 'micro-batch', rank});
    if (showMemory && rank.memory) rows.push({kind: 'memory', name: 'memory', rank});
    return rows;
  };
  const ribbons = model.stages > 1 && model.microBatches > 1;
  const compactRows = (rank) => [
    ...(ribbons ? [{kind: 'ribbon', name: '', rank}] : []),
    {kind: 'lane', lane: 'compute', communicates: false, tracks: rank.tracks.filter((track) => !track.communicates), name: ''},
    {kind: 'lane', communicates: true, name: '',
     tracks: rank.tracks.filter((track) => track.communicates && !(ribbons && WAITS_FOR_STAGES.has(track.lane)))},
  ].filter((row) => !row.communicates || model.lanes.some((lane) => lane.communicates));

  const groups = model.ranks.map((rank) => {
    const open = expanded.has(rank.rank);
    return {rank, open, rows: open ? rowsOf(rank) : compactRows(rank)};
  });
  // Rows grow into the available room, within limits; memory grows most.
  const sizes = (scale) => {
    const clamp = (value, low, high) => Math.round(Math.max(low, Math.min(high, value * scale)));
    return {
      ribbon: clamp(20, 18, 24), compute: clamp(20, 19, 36), exchange: clamp(16, 14, 26), other: clamp(14, 11, 22),
      memory: clamp(26, 18, 300), gap: clamp(8, 6, 18),
      compactCompute: clamp(9, 6, 14), compactOther: clamp(4, 3, 7), compactGap: ribbons ? clamp(6, 4, 12) : clamp(3, 2, 6), compactRibbon: clamp(20, 18, 26),
      compactStage: clamp(16, 9, 34),
    };
  };
  // A rank expanded among compact ones has its usual size, whatever the room.
  const some = groups.some((group) => !group.open);
  const place = (scale) => {
    const usual = sizes(some ? Math.max(1, Math.min(scale, 1.3)) : scale), compact = sizes(scale);
    let y = 0;
    for (const group of groups) {
      const size = group.open ? usual : compact;
      const pad = group.open ? size.gap / 2 : size.compactGap / 2;
      group.y = y;
      y += pad;
      for (const row of group.rows) {
        row.group = group;
        row.y = y;
        if (row.kind !== 'lane') row.h = group.open ? size[row.kind] : size.compactRibbon;
        else if (group.open) row.h = size[row.lane] || size.other;
        else row.h = row.communicates ? size.compactOther : ribbons ? size.compactStage : size.compactCompute;
        y += row.h + (group.open ? 2 : 0);
      }
      y += pad;
      group.h = y - group.y;
    }
    return y;
  };
  let height = 0;
  for (const next of [12, 8, 5, 4, 3, 2.5, 2, 1.7, 1.45, 1.25, 1.1, 1, 0.9, 0.8, 0.7]) {
    height = place(next);
    if (height <= room) break;
  }
  return {groups, height};
}

// The row at a height, or the group's when between rows.
function rowAt(layout, y) {
  let low = 0, high = layout.groups.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (layout.groups[middle].y <= y) low = middle;
    else high = middle - 1;
  }
  const group = layout.groups[low];
  if (!group || y < group.y || y >= group.y + group.h) return null;
  return {group, row: group.rows.find((row) => y >= row.y - 1 && y < row.y + row.h + 1) || null};
}
