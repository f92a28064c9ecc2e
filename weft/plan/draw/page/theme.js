// Colours, read from the style sheet so that light and dark schemes are in one place. Cold colours are computation,
// warm ones communication: pale if hidden, strong if exposed. Micro-batches differ in shade.

const SHADES = [-0.1, 0.16, 0.02, 0.24, -0.16, 0.1, -0.04, 0.2];  // towards black or white, by micro-batch
const HIDDEN = 5, EXPOSED = 6;                                      // after the categories of data.js
const COLOUR_NAMES = ['forward', 'backward', 'weight', 'update', 'other', 'hidden', 'exposed'];

function rgbOf(text) {
  const value = parseInt(text.trim().slice(1), 16);
  return [value >> 16, value >> 8 & 255, value & 255];
}

const cssOf = (rgb, alpha = 1) => `rgba(${rgb.map(Math.round).join(',')},${alpha})`;

class Theme {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => rgbOf(style.getPropertyValue('--' + name));
    this.rgb = {};
    for (const name of ['ground', 'band', 'line', 'text', 'muted', 'accent', 'memory', ...COLOUR_NAMES]) {
      this.rgb[name] = read(name);
      this[name] = cssOf(this.rgb[name]);
    }
    this.grid = cssOf(this.rgb.text, 0.07);
    // Flat tables for the inner loop: 3 numbers for each of (kind, shade).
    this.table = new Float32Array(COLOUR_NAMES.length * SHADES.length * 3);
    this.ink = [];  // colour of text on each
    COLOUR_NAMES.forEach((name, kind) => SHADES.forEach((shade, s) => {
      const towards = shade < 0 ? 0 : 255, amount = Math.abs(shade) * (kind >= HIDDEN ? 0.5 : 1);
      const rgb = this.rgb[name].map((part) => part + (towards - part) * amount);
      this.table.set(rgb, 3 * (kind * SHADES.length + s));
      const light = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;
      this.ink.push(light > 0.66 ? 'rgba(20,22,28,0.86)' : 'rgba(255,255,255,0.95)');
    }));
    this.hatch = this.makeHatch(this.rgb.exposed);
    this.bubbleHatch = this.makeHatch(this.rgb.muted);
  }

  // For times in which nothing computes because of a transfer, or of another stage.
  makeHatch(rgb) {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 6;
    const context = canvas.getContext('2d');
    context.strokeStyle = cssOf(rgb, 0.5);
    context.lineWidth = 1;
    for (const x of [-6, 0, 6]) {
      context.beginPath();
      context.moveTo(x - 1, 7);
      context.lineTo(x + 7, -1);
      context.stroke();
    }
    return canvas;
  }
}

const shadeOf = (microBatch) => microBatch < 0 ? 2 : microBatch % SHADES.length;
