// Turns the page's facts (JSON) and blocks (bytes), written by weft/plan/draw/timeline_page.cc, into typed arrays.

const FORWARD = 0, BACKWARD = 1, WEIGHT = 2, UPDATE = 3, OTHER = 4, COMMUNICATION = 5;
const CATEGORY_OF_PHASE = {forward: FORWARD, evaluate: FORWARD, backward: BACKWARD, weight_gradient: WEIGHT, recompute: FORWARD, update: UPDATE};

function bytesOfBase64(text) {
  const raw = atob(text.trim()), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

class Reader {
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
  }
  number() {  // seven bits per byte, lowest first; up to 2^53, so no shifts
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte - 128, scale = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    return value;
  }
  signed() {
    const value = this.number();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

// Consecutive events: sorted and disjoint, so both starts and ends are sorted.
function readEvents(bytes, at, count) {
  const reader = new Reader(bytes, at);
  const events = {
    count,
    start: new Float64Array(count),
    end: new Float64Array(count),
    label: new Uint32Array(count),
    microBatch: new Int32Array(count),
  };
  let time = 0, label = 0, microBatch = 0;
  for (let i = 0; i < count; ++i) {
    events.start[i] = time += reader.number();
    events.end[i] = time += reader.number();
    events.label[i] = label += reader.signed();
    events.microBatch[i] = microBatch += reader.signed();
  }
  return events;
}

function readMemory(bytes, at, count) {
  const reader = new Reader(bytes, at);
  const memory = {count, time: new Float64Array(count), bytes: new Float64Array(count), peak: 0, peakTime: 0};
  let time = 0, size = 0;
  for (let i = 0; i < count; ++i) {
    memory.time[i] = time += reader.number();
    memory.bytes[i] = size += reader.signed();
    if (size > memory.peak) {
      memory.peak = size;
      memory.peakTime = time;
    }
  }
  return memory;
}

// First index with sorted[index] > value.
function after(sorted, value, count = sorted.length) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Disjoint sorted intervals {start, end, count}.
function unionOf(a, b) {
  const start = [], end = [];
  let i = 0, j = 0;
  while (i < a.count || j < b.count) {
    const first = j >= b.count || (i < a.count && a.start[i] <= b.start[j]);
    const from = first ? a.start[i] : b.start[j], to = first ? a.end[i++] : b.end[j++];
    if (end.length && from <= end[end.length - 1]) end[end.length - 1] = Math.max(end[end.length - 1], to);
    else if (to > from) start.push(from), end.push(to);
  }
  return {start: Float64Array.from(start), end: Float64Array.from(end), count: start.length};
}

function difference(a, b) {
  const start = [], end = [];
  for (let i = 0, j = 0; i < a.count; ++i) {
    let from = a.start[i];
    while (j < b.count && b.end[j] <= from) ++j;
    for (let k = j; k < b.count && b.start[k] < a.end[i]; ++k) {
      if (b.start[k] > from) start.push(from), end.push(b.start[k]);
      from = Math.max(from, b.end[k]);
    }
    if (from < a.end[i]) start.push(from), end.push(a.end[i]);
  }
  return {start: Float64Array.from(start), end: Float64Array.from(end), count: start.length};
}

const NOTHING = {start: new Float64Array(0), end: new Float64Array(0), count: 0};

function overlapOf([compute, communication, hidden, exposed, idle]) {
  const overlap = {compute: compute * 1e9, communication: communication * 1e9, hidden: hidden * 1e9};
  overlap.exposed = exposed * 1e9;
  overlap.idle = idle * 1e9;
  overlap.span = overlap.compute + overlap.exposed + overlap.idle;
  overlap.shareHidden = communication > 0 ? hidden / communication : 1;
  return overlap;
}

function readLabel(fields, strings) {
  const [name, layer, lane, phase, unit, flops, bytes, uses, parameters] = fields;
  const label = {name: strings[name], layer: strings[layer], lane: strings[lane], phase: strings[phase], unit, flops, bytes};
  label.piece = label.name.startsWith(label.layer + '.') ? label.name.slice(label.layer.length + 1) : label.name;
  label.uses = [];
  for (let i = 0; i < uses.length; i += 4)
    label.uses.push({access: uses[i], buffer: strings[uses[i + 1]], perMicroBatch: uses[i + 2], size: uses[i + 3]});
  label.parameters = parameters.map((p) => strings[p]);
  // As in the schedule: a prime marks backward, a w a weight gradient.
  label.short = label.piece + (label.phase === 'backward' ? '′' : label.phase === 'weight_gradient' ? ' w' : label.phase === 'recompute' ? ' again' : '');
  return label;
}

class TimelineModel {
  constructor(facts, bytes) {
    this.title = facts.title;
    this.about = facts.about;
    this.times = facts.times;
    this.span = facts.span * 1e9;
    this.lanes = facts.lanes;
    for (const lane of this.lanes) lane.overlap = lane.overlap && overlapOf(lane.overlap);
    const communicates = new Map(this.lanes.map((lane) => [lane.name, lane.communicates]));
    this.labels = facts.labels.map((fields) => readLabel(fields, facts.strings));
    this.category = Uint8Array.from(this.labels, (label) => communicates.get(label.lane) ?
        COMMUNICATION : CATEGORY_OF_PHASE[label.phase] ?? OTHER);
    this.overlap = overlapOf(facts.overlap);
    this.stages = facts.stages ? Math.max(...facts.stages) + 1 : 1;
    this.ranks = Array.from({length: facts.ranks}, (_, rank) => ({
      rank, name: 'rank ' + rank + (facts.stages ? ' · stage ' + facts.stages[rank] : ''), model: this, tracks: [],
      overlap: overlapOf(facts.overlaps[rank])}));

    // Ranks that do the same share a block and its arrays.
    const known = new Map();
    const once = (at, read) => known.get(at) || known.set(at, read()).get(at);
    this.events = 0;
    this.microBatches = 0;
    for (const [rank, lane, row, at, count] of facts.tracks) {
      const events = once(at, () => readEvents(bytes, at, count));
      this.ranks[rank].tracks.push({rank, lane, row, at, communicates: communicates.get(lane), events});
      this.events += count;
    }
    for (const events of new Set(this.ranks.flatMap((rank) => rank.tracks.map((track) => track.events))))
      for (let i = 0; i < events.count; ++i) this.microBatches = Math.max(this.microBatches, events.microBatch[i] + 1);
    for (const [rank, at, count] of facts.memory)
      this.ranks[rank].memory = once('memory' + at, () => readMemory(bytes, at, count));
    this.reserved = facts.reserved;
    this.peak = Math.max(0, ...this.ranks.map((rank) => rank.memory ? rank.memory.peak : 0));
    const busy = new Map();
    for (const rank of this.ranks) {
      const key = rank.tracks.map((track) => track.lane + track.at).join(' ');
      if (!busy.has(key)) busy.set(key, busyOf(rank));
      Object.assign(rank, busy.get(key));
    }
  }

  // What a transfer is hidden behind: [{track, index, time}] on the same rank.
  hiding(track, index) {
    const from = track.events.start[index], to = track.events.end[index], found = [];
    for (const other of this.ranks[track.rank].tracks) {
      if (other.communicates) continue;
      const events = other.events;
      for (let i = after(events.end, from); i < events.count && events.start[i] < to; ++i)
        found.push({track: other, index: i, time: Math.min(to, events.end[i]) - Math.max(from, events.start[i])});
    }
    return found;
  }
}

// A receive between stages is there ahead of time, and mostly waits for the other stage, as does a sum over stages. So where
// nothing else goes on, it is not communication that costs time but the pipeline's bubble.
const WAITS_FOR_STAGES = new Set(['pipe_in', 'back_in', 'stage_sums']);

function busyOf(rank) {
  let busy = NOTHING, transfers = NOTHING, waits = NOTHING;
  for (const track of rank.tracks) {
    if (WAITS_FOR_STAGES.has(track.lane)) waits = unionOf(waits, track.events);
    else if (track.communicates) transfers = unionOf(transfers, track.events);
    else busy = unionOf(busy, track.events);
  }
  const bubble = difference(difference(waits, busy), transfers);
  return {busy, exposed: difference(transfers, busy), bubble, forward: spansOf(rank, false), backward: spansOf(rank, true)};
}

// When the forward, or the backward, of each micro-batch runs, from its first node to its last. If two are woven into
// each other, each has its own spans.
function spansOf(rank, backward) {
  const spans = [], {model} = rank;
  for (const track of rank.tracks) {
    if (track.lane !== 'compute' || track.row) continue;
    const {start, end, label, microBatch, count} = track.events;
    let last = null;
    for (let i = 0; i < count; ++i) {
      const kind = model.category[label[i]];
      if (microBatch[i] < 0 || (backward ? kind !== BACKWARD && kind !== WEIGHT : kind !== FORWARD)) continue;
      if (last && last.microBatch === microBatch[i]) last.end = end[i];
      else spans.push(last = {start: start[i], end: end[i], microBatch: microBatch[i], track, index: i});
    }
  }
  return {list: spans, end: Float64Array.from(spans, (span) => span.end)};
}

// Length of the part of [from, to] that the intervals cover.
function covered(intervals, from, to) {
  let sum = 0;
  for (let i = after(intervals.end, from); i < intervals.count && intervals.start[i] < to; ++i)
    sum += Math.min(to, intervals.end[i]) - Math.max(from, intervals.start[i]);
  return sum;
}
