'use strict';
// Numbers as text. Times are nanoseconds everywhere in the page.

const NARROW = '\u202f';  // a narrow no-break space

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

function withUnit(value, units, step) {
  let unit = 0;
  while (unit + 1 < units.length && Math.abs(value) >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  const text = unit === 0 && Number.isInteger(value) ? String(value) : threeDigits(value);
  return units[unit] ? text + NARROW + units[unit] : text;
}

const timeText = (ns) => ns === 0 ? '0' : withUnit(ns, ['ns', 'µs', 'ms', 's'], 1000);
// A point in time: to the nanosecond up to a second, without trailing zeros.
function momentText(ns, step = 1) {
  const [unit, size] = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]].find(([, s]) => ns >= s) || ['', 1];
  const rounded = Math.round(ns / step) * step;
  return String(Number((rounded / size).toFixed(Math.max(0, Math.round(Math.log10(size)))))) + NARROW + unit;
}
const bytesText = (bytes) => withUnit(bytes, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024);
const countText = (count) => withUnit(count, ['', 'k', 'M', 'G', 'T', 'P', 'E'], 1000);
const wholeText = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, NARROW);

// 99.96 % is not 100 %: a share is rounded towards the middle.
function shareText(share) {
  if (share > 0.999 && share < 1) return '99.9' + NARROW + '%';
  if (share > 0 && share < 0.001) return '0.1' + NARROW + '%';
  return (share === 0 || share === 1 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)) + NARROW + '%';
}

// Marks of a time axis: about `room` pixels apart, at 1, 2 or 5 times a power of ten.
function ticksOf(from, to, width, room) {
  const least = (to - from) * room / width;
  const power = Math.pow(10, Math.floor(Math.log10(least)));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= least * 0.999);
  const unit = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]].find(([, size]) => to >= size) || ['ns', 1];
  const decimals = Math.max(0, Math.ceil(Math.log10(unit[1] / step) - 1e-9));
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to; ++i)
    ticks.push({time: i * step, text: (i * step / unit[1]).toFixed(decimals) + NARROW + unit[0]});
  return {step, ticks};
}

// element('td.number', 'text', child, ...)
function element(kind, ...children) {
  const [tag, ...classes] = kind.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
