// Where ranks and lanes stand on a panel: an expanded rank has a row for each lane and its memory, a compact one two
// thin rows, so that 64 ranks fit on a screen.

const GUTTER = 168;  // pixels: names left of the lanes
const AXIS = 22;     // pixels: the time axis above them

// expanded: Set of ranks. room: pixels that are there.
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
    if (showMemory && rank.memory) rows.push({kind: 'memory', name: 'memory', rank});
    return rows;
  };
  const compactRows = (rank) => [
    {kind: 'lane', communicates: false, tracks: rank.tracks.filter((track) => !track.communicates), name: ''},
    {kind: 'lane', communicates: true, tracks: rank.tracks.filter((track) => track.communicates), name: ''},
  ].filter((row) => !row.communicates || model.lanes.some((lane) => lane.communicates));

  const groups = model.ranks.map((rank) => {
    const open = expanded.has(rank.rank);
    return {rank, open, rows: open ? rowsOf(rank) : compactRows(rank)};
  });
  // Rows grow into the room there is, within limits; memory gains most.
  const sizes = (scale) => {
    const clamp = (value, low, high) => Math.round(Math.max(low, Math.min(high, value * scale)));
    return {
      compute: clamp(20, 20, 34), other: clamp(15, 15, 24), memory: clamp(26, 22, 130), gap: clamp(8, 8, 18),
      compactCompute: clamp(9, 7, 14), compactOther: clamp(4, 3, 7), compactGap: clamp(3, 2, 6),
    };
  };
  const place = (size) => {
    let y = 0;
    for (const group of groups) {
      const pad = group.open ? size.gap / 2 : size.compactGap / 2;
      group.y = y;
      y += pad;
      for (const row of group.rows) {
        row.group = group;
        row.y = y;
        const main = !row.communicates && row.lane !== 'update';
        row.h = row.kind === 'memory' ? size.memory :
            group.open ? (main ? size.compute : size.other) : (main ? size.compactCompute : size.compactOther);
        y += row.h + (group.open ? 2 : 1);
      }
      y += pad;
      group.h = y - group.y;
    }
    return y;
  };
  let scale = 1, height = place(sizes(1));
  for (const next of [5, 4, 3, 2.5, 2, 1.7, 1.45, 1.25, 1.1, 1, 0.9, 0.8, 0.7]) {
    scale = next;
    height = place(sizes(scale));
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
