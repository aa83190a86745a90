document.documentElement.classList.add('scripted');

// What all parts share: the data, numbers as the panel prints them, colours, canvases, the selection.
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const MISSING = '-';

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children); // strings become text, never markup
  return node;
}

// ---- data

const KINDS = { u1: Uint8Array, i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

function unpack(packed) {
  const text = atob(packed[1]);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (packed[0] === 'u1') return bytes;
  const Kind = KINDS[packed[0]];
  if (LITTLE) return new Kind(bytes.buffer);
  const view = new DataView(bytes.buffer);
  const read = { i4: 'getInt32', u4: 'getUint32', f4: 'getFloat32', f8: 'getFloat64' }[packed[0]];
  return Kind.from({ length: bytes.length / Kind.BYTES_PER_ELEMENT }, (_, i) => view[read](i * Kind.BYTES_PER_ELEMENT, true));
}
const LITTLE = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

function unpackRows(rows) {
  const out = { values: {} };
  for (const name of ['number', 'flags', 'failures', 'worker', 'sent', 'returned']) out[name] = unpack(rows[name]);
  for (const [name, column] of Object.entries(rows.values)) out.values[name] = unpack(column);
  out.length = out.number.length;
  out.at = new Map();
  for (let i = 0; i < out.length; i++) out.at.set(out.number[i], i);
  return out;
}

const data = JSON.parse($('#data').textContent);
const tasks = data.tasks;
tasks.forEach((task, index) => {
  task.index = index;
  if (!task.n) return;
  task.measure = new Map(task.measures.map((m) => [m.key, m]));
  task.slow = unpackRows(task.slow);
  if (task.rows) task.rows = unpackRows(task.rows);
  for (const name of ['known', 'done', 'busy']) if (task[name]) task[name] = unpack(task[name]);
  for (const name of ['mean', 'most']) {
    if (task[name]) for (const key of Object.keys(task[name])) task[name][key] = unpack(task[name][key]);
  }
  if (task.trend) {
    task.trend.counts = unpack(task.trend.counts);
    task.trend.mean = unpack(task.trend.mean);
  }
});

function cellOf(number, counts) {
  const cell = [];
  for (let axis = counts.length - 1; axis >= 0; axis--) {
    cell[axis] = number % counts[axis];
    number = Math.floor(number / counts[axis]);
  }
  return cell;
}
const numberOf = (cell, counts) => cell.reduce((sum, at, axis) => sum * counts[axis] + at, 0);
const cellText = (cell) => `(${cell.join(', ')})`;

// The row of a block, from all rows or from the slowest ones; null where the page has none.
function rowOf(task, number) {
  for (const rows of [task.rows, task.slow]) {
    if (rows && rows.at.has(number)) return { rows, at: rows.at.get(number) };
  }
  return null;
}

// ---- numbers: the same units and rounding as in the panel

// To one decimal. Binary numbers have ties there at .25 and .75 only; Python takes the even digit, JavaScript the larger.
function fixed(value) {
  const size = Math.abs(value);
  return size % 1 === 0.25 ? (Math.sign(value) * (Math.floor(size) + 0.2)).toFixed(1) : value.toFixed(1);
}
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

function duration(seconds) {
  if (!known(seconds)) return MISSING;
  const size = Math.abs(seconds);
  if (size < 999.95e-6) return `${fixed(seconds * 1e6)} µs`;
  if (size < 999.95e-3) return `${fixed(seconds * 1e3)} ms`;
  return `${fixed(seconds)} s`;
}

function longDuration(seconds) {
  if (!known(seconds) || seconds < 59.95) return duration(seconds);
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function size(number) {
  if (!known(number)) return MISSING;
  let power = 0;
  while (Math.abs(number) >= 1023.95 && power < 4) {
    number /= 1024;
    power += 1;
  }
  return `${fixed(number)} ${['B', 'KB', 'MB', 'GB', 'TB'][power]}`;
}

const whole = (number) => (known(number) ? Math.round(number).toLocaleString('en-US') : MISSING);
const figure = (value, unit) =>
  !known(value) ? MISSING : unit === 's' ? duration(value) : unit === 'B' ? size(value) : unit === '%' ? `${fixed(value)} %` : whole(value);
const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? '' : 's'}`;

// ---- colours

let palette = {};
function readColours() {
  const probe = make('span', { class: 'out' });
  document.body.append(probe);
  const names = ['paper', 'card', 'ink', 'soft', 'rule', 'hair', 'accent', 'bad', 'empty', 'pick'];
  palette = {};
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  for (const name of names) palette[name] = read(name);
  palette.ramp = [0, 1, 2, 3, 4].map((n) => read(`ramp${n}`).match(/[\d.]+/g).slice(0, 3).map(Number));
  palette.task = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => read(`c${n}`));
  probe.remove();
}

function ramp(part) {
  const at = Math.min(Math.max(part, 0), 1) * 4;
  const low = Math.min(3, Math.floor(at));
  const mix = palette.ramp[low].map((v, i) => Math.round(v + (palette.ramp[low + 1][i] - v) * (at - low)));
  return `rgb(${mix.join(',')})`;
}

// A scale of values: where between least and most, on a logarithmic axis if they are far apart.
function scaleOf(low, high) {
  if (!(high > low)) return { log: false, part: () => 0.5, value: () => low };
  if (low > 0 && high > 20 * low) {
    const span = Math.log(high / low);
    return { log: true, part: (v) => Math.log(v / low) / span, value: (p) => low * Math.exp(p * span) };
  }
  return { log: false, part: (v) => (v - low) / (high - low), value: (p) => low + (high - low) * p };
}

// Round numbers between two values, about as many as asked for.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= raw);
  const out = [];
  for (let n = Math.ceil(low / step - 1e-9) + 0; n * step <= high + step * 1e-6; n++) out.push(n * step + 0);
  return out;
}

// The same for seconds, in steps that a clock has, each with what stands at it.
function timeTicks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  const step = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200].find((s) => s >= raw);
  if (raw <= 30 || !step) return ticks(low, high, wanted).map((at) => [at, at === 0 ? '0' : raw > 30 ? `${whole(at / 3600)} h` : duration(at).replace('.0 ', ' ')]);
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) out.push([at, at === 0 ? '0' : longDuration(at).replace(' 0 s', '').replace(' 0 min', '')]);
  return out;
}

// ---- canvases

// Prepare a canvas for drawing in CSS pixels, as wide as its place.
function prepare(canvas, height) {
  const width = Math.max(160, Math.floor(canvas.parentElement.clientWidth));
  const ratio = Math.max(1, printing ? 2 : window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  canvas.style.width = printing ? `${width}px` : '';
  const to = canvas.getContext('2d');
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.font = '12px system-ui, sans-serif';
  to.textBaseline = 'middle';
  return { to, width, height };
}

let printing = false;
const redraws = new Set();
function redraw() {
  readColours();
  for (const draw of redraws) draw();
}

function hoverBox(stage) {
  const box = make('div', { class: 'hover', hidden: '', 'aria-hidden': 'true' });
  stage.append(box);
  return {
    show(x, y, lines) {
      box.replaceChildren(...lines.flatMap((line, n) => (n ? [make('br'), line] : [line])));
      box.hidden = false;
      const left = Math.min(x + 14, stage.clientWidth - box.offsetWidth - 4);
      box.style.left = `${Math.max(0, left)}px`;
      box.style.top = `${y + 16 + box.offsetHeight > stage.clientHeight + 30 ? y - box.offsetHeight - 8 : y + 16}px`;
    },
    hide() { box.hidden = true; },
  };
}

// ---- the selection: one block of one task; every part listens

const selection = { task: null, number: null };
const listeners = [];
const onSelect = (call) => listeners.push(call);

function select(task, number, { from = null, quiet = false } = {}) {
  selection.task = task;
  selection.number = number;
  for (const call of listeners) call(from);
  if (number !== null) {
    const address = `#${task.index}:${cellOf(number, task.counts).join(',')}`;
    try { history.replaceState(null, '', address); } catch { /* a page in a frame may not */ }
    if (!quiet) $('#live').textContent = spoken(task, number);
  }
}

function spoken(task, number) {
  const cell = cellText(cellOf(number, task.counts));
  const found = rowOf(task, number);
  const parts = [`${task.noun} ${cell} of ${task.id}`];
  if (!found) parts.push(task.rows ? 'nothing recorded' : 'in a bin');
  else {
    if (!(found.rows.flags[found.at] & 1)) parts.push('not done');
    if (task.main) parts.push(`${task.measure.get(task.main).label} ${figure(found.rows.values[task.main][found.at], 's')}`);
    if (found.rows.worker[found.at] >= 0) parts.push(`${task.worker} ${found.rows.worker[found.at]}`);
  }
  return parts.join(', ');
}
