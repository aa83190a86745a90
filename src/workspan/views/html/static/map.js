// The map of a task's blocks: two axes of the grid as a picture, the others as sliders; a grid of one axis is wrapped.
class BlockMap {
  constructor(task, place) {
    this.task = task;
    this.key = task.main || task.measures[0]?.key || null;
    this.kind = 'mean'; // of a bin
    const long = task.bins.map((n, axis) => [n, axis]).filter(([n]) => n > 1).map(([, axis]) => axis);
    this.axes = long.length > 1 ? long.slice(-2) : [null, long[0] ?? task.bins.length - 1]; // rows, columns
    this.at = task.bins.map((n) => Math.floor(n / 2)); // the slice, and where the keys are
    this.axes.forEach((axis) => { if (axis !== null) this.at[axis] = 0; });
    this.build(place);
    redraws.add(() => this.draw());
    onSelect((from) => this.follow(from));
    this.fill();
  }

  // ---- parts

  build(place) {
    const { task } = this;
    const n = task.index;
    this.controls = make('div', { class: 'controls' });
    const pick = make('select', { id: `metric-${n}`, on: { change: (e) => this.show(e.target.value) } });
    const groups = [['Cost', task.measures.filter((m) => !m.step)], ['Steps', task.measures.filter((m) => m.step)]];
    for (const [label, list] of groups) {
      if (list.length) pick.append(make('optgroup', { label }, ...list.map((m) => make('option', { value: m.key }, m.label))));
    }
    pick.append(make('option', { value: '' }, 'done or not'));
    pick.value = this.key ?? '';
    this.controls.append(make('label', { for: pick.id }, 'Colour by ', pick));
    if (!task.rows) {
      const kind = make('select', { id: `kind-${n}`, on: { change: (e) => { this.kind = e.target.value; this.fill(); } } },
        make('option', { value: 'mean' }, 'mean of a bin'), make('option', { value: 'most' }, 'most in a bin'));
      this.controls.append(make('label', { for: kind.id }, kind));
    }
    this.sliders = make('span', { class: 'controls' });
    this.controls.append(this.sliders);
    this.canvas = make('canvas', { 'aria-hidden': 'true' });
    this.stage = make('div', {
      class: 'stage', tabindex: '0', role: 'application', 'aria-roledescription': 'map of blocks', 'data-part': 'map-stage',
      'aria-label': `Map of the ${task.noun}s of ${task.id}. Arrow keys move, page up and page down change the slice, home and end go to the ends of a row. The slice is also a table below.`,
      on: {
        click: (e) => this.click(e), keydown: (e) => this.press(e),
        mousemove: (e) => this.hover(e), mouseleave: () => this.box.hide(),
      },
    }, this.canvas);
    this.box = hoverBox(this.stage);
    this.strip = make('canvas', { class: 'strip', 'aria-hidden': 'true', hidden: '', on: { click: (e) => this.clickStrip(e) } });
    this.ramp = make('canvas', { width: '220', height: '12', 'aria-hidden': 'true' });
    this.low = make('span');
    this.high = make('span');
    this.legend = make('div', { class: 'legend' }, this.low, this.ramp, this.high,
      make('span', { class: 'key' }, make('i'), `no ${task.noun}, not run or not measured`), make('span', { class: 'key' }, make('i', { class: 'bad' }), 'not done after failed attempts'));
    this.table = make('details', { on: { toggle: () => this.tabulate() } }, make('summary', {}, 'This slice as a table'), make('div', { class: 'scroll' }));
    this.inspect = make('div', { class: 'inspect', 'data-part': 'inspect' });
    place.append(make('div', {}, this.controls, this.stage, this.strip, this.legend, this.table), this.inspect);
    this.buildSliders();
  }

  buildSliders() {
    const { task } = this;
    this.sliders.replaceChildren();
    const long = task.bins.map((n, axis) => [n, axis]).filter(([n]) => n > 1).map(([, axis]) => axis);
    if (long.length < 3) return;
    const choice = make('select', { id: `plane-${task.index}`, on: { change: (e) => {
      this.axes = e.target.value.split(',').map(Number);
      this.buildSliders();
      this.fill();
    } } });
    for (let i = 0; i < long.length; i++) {
      for (let j = i + 1; j < long.length; j++) choice.append(make('option', { value: `${long[i]},${long[j]}` }, `${long[i]} down, ${long[j]} across`));
    }
    choice.value = this.axes.join(',');
    this.sliders.append(make('label', { for: choice.id }, 'Axes ', choice));
    for (const axis of long.filter((a) => !this.axes.includes(a))) {
      const output = make('output', { for: `slice-${task.index}-${axis}` });
      const slider = make('input', {
        type: 'range', id: `slice-${task.index}-${axis}`, min: '0', max: String(task.bins[axis] - 1), step: '1', 'data-axis': String(axis),
        on: { input: () => { this.at[axis] = Number(slider.value); this.fill(); } },
      });
      slider.value = String(this.at[axis]);
      this.sliders.append(make('label', { for: slider.id }, `Axis ${axis} at `, slider, output));
    }
    this.tellSliders();
  }

  tellSliders() {
    for (const slider of $$('input', this.sliders)) {
      const axis = Number(slider.dataset.axis);
      slider.value = String(this.at[axis]);
      const text = `${this.range(this.at, axis)} of 0–${this.task.counts[axis] - 1}`;
      slider.nextElementSibling.textContent = text;
      slider.setAttribute('aria-valuetext', text);
    }
  }

  show(key) {
    this.key = key || null;
    this.fill();
    if (this.onShow && key) this.onShow(key);
  }

  // ---- the slice

  get rows() { return this.axes[0] === null ? Math.ceil(this.task.bins[this.axes[1]] / this.columns) : this.task.bins[this.axes[0]]; }

  get columns() {
    const across = this.task.bins[this.axes[1]];
    return this.axes[0] === null ? Math.min(across, Math.max(12, Math.ceil(Math.sqrt(across * 3)))) : across;
  }

  // Bin at a place of the picture; null beyond the end of a wrapped axis.
  binAt(row, column) {
    const bin = [...this.at];
    if (this.axes[0] === null) {
      const at = row * this.columns + column;
      if (at >= this.task.bins[this.axes[1]]) return null;
      bin[this.axes[1]] = at;
    } else {
      bin[this.axes[0]] = row;
      bin[this.axes[1]] = column;
    }
    return bin;
  }

  placeOf(bin) {
    if (this.axes[0] !== null) return [bin[this.axes[0]], bin[this.axes[1]]];
    const at = bin[this.axes[1]];
    return [Math.floor(at / this.columns), at % this.columns];
  }

  // What is known of a bin: a row of the data, or figures of many.
  facts(bin) {
    const { task } = this;
    const number = numberOf(bin, task.bins);
    if (task.rows) {
      const at = task.rows.at.get(number);
      if (at === undefined) return null;
      const value = this.key === null ? null : task.rows.values[this.key][at];
      const done = (task.rows.flags[at] & 1) === 1;
      return { value, done: done ? 1 : 0, known: 1, bad: !done && task.rows.failures[at] > 0 };
    }
    if (!task.known[number]) return null;
    const value = this.key === null ? null : task[this.kind][this.key][number];
    return { value, done: task.done[number], known: task.known[number], bad: task.done[number] < task.known[number] };
  }

  fill() {
    const { task } = this;
    let low = Infinity;
    let high = -Infinity;
    const add = (v) => { if (v === v && v !== null) { low = Math.min(low, v); high = Math.max(high, v); } };
    if (this.key !== null) (task.rows ? task.rows.values[this.key] : task[this.kind][this.key]).forEach(add); // of all slices: colours stay
    this.range_ = low <= high ? [low, high] : null;
    this.scale = this.range_ ? scaleOf(low, high) : null;
    this.tellSliders();
    this.draw();
    this.tabulate();
  }

  colour(fact) {
    if (!fact) return palette.empty;
    if (this.key === null) return fact.bad ? palette.bad : ramp(0.25 + 0.5 * (fact.done / fact.known));
    return fact.value === fact.value && fact.value !== null && this.scale ? ramp(this.scale.part(fact.value)) : palette.empty;
  }

  draw() {
    const wide = this.stage.clientWidth;
    if (!wide) return;
    const [rows, columns] = [this.rows, this.columns];
    const room = Math.min(wide, 760);
    this.cell = Math.max(1, Math.min(104, room / columns, 560 / rows));
    if (this.cell > 3) this.cell = Math.floor(this.cell);
    this.stage.dataset.cell = String(this.cell);
    const { to } = prepare(this.canvas, Math.ceil(rows * this.cell) + 4);
    const gap = this.cell > 10 ? 2 : this.cell > 5 ? 1 : 0;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const bin = this.binAt(row, column);
        if (!bin) continue;
        const fact = this.facts(bin);
        const [x, y, s] = [2 + column * this.cell, 2 + row * this.cell, Math.max(1, this.cell - gap)];
        to.fillStyle = this.colour(fact);
        to.fillRect(x, y, s, s);
        if (fact && fact.bad && this.cell >= 4) {
          to.strokeStyle = palette.bad;
          to.lineWidth = Math.min(3, this.cell / 5);
          to.beginPath();
          to.moveTo(x + s * 0.25, y + s * 0.25); to.lineTo(x + s * 0.75, y + s * 0.75);
          to.moveTo(x + s * 0.75, y + s * 0.25); to.lineTo(x + s * 0.25, y + s * 0.75);
          to.stroke();
        }
      }
    }
    const [row, column] = this.placeOf(this.at);
    if (this.isHere() || document.activeElement === this.stage) {
      to.strokeStyle = palette.card;
      to.lineWidth = 5;
      const s = Math.max(3, this.cell - gap);
      const box = [2 + column * this.cell, 2 + row * this.cell, s, s];
      to.strokeRect(...box);
      to.strokeStyle = palette.pick;
      to.lineWidth = 2.5;
      to.strokeRect(...box);
    }
    this.drawStrip();
    this.drawLegend();
  }

  // All slices along the first axis that is not in the picture, small; the slider beside says the same in words.
  get other() {
    const { bins } = this.task;
    return bins.map((n, axis) => axis).filter((axis) => !this.axes.includes(axis) && bins[axis] > 1)[0];
  }

  drawStrip() {
    const { other, task } = this;
    const [rows, columns] = [this.rows, this.columns];
    const slices = other === undefined ? 0 : task.bins[other];
    this.strip.hidden = !slices || slices * rows * columns > 150000;
    if (this.strip.hidden) return;
    const s = Math.max(1, Math.min(9, Math.floor(72 / Math.max(rows, columns))));
    this.thumb = { wide: columns * s + 12, high: rows * s + 24 };
    this.thumb.line = Math.max(1, Math.floor(this.strip.parentElement.clientWidth / this.thumb.wide));
    const { to } = prepare(this.strip, Math.ceil(slices / this.thumb.line) * this.thumb.high);
    to.font = '11px system-ui, sans-serif';
    to.textAlign = 'left';
    const was = this.at;
    for (let slice = 0; slice < slices; slice++) {
      const [x, y] = [(slice % this.thumb.line) * this.thumb.wide, Math.floor(slice / this.thumb.line) * this.thumb.high];
      this.at = was.map((at, axis) => (axis === other ? slice : at));
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const bin = this.binAt(row, column);
          to.fillStyle = bin ? this.colour(this.facts(bin)) : palette.card;
          to.fillRect(x + 2 + column * s, y + 2 + row * s, s, s);
        }
      }
      to.fillStyle = palette.soft;
      to.fillText(this.range(this.at, other), x + 2, y + rows * s + 12);
      if (slice === was[other]) {
        to.strokeStyle = palette.pick;
        to.lineWidth = 2;
        to.strokeRect(x + 1, y + 1, columns * s + 2, rows * s + 2);
      }
    }
    this.at = was;
  }

  clickStrip(event) {
    const box = this.strip.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.thumb.wide);
    const slice = column + this.thumb.line * Math.floor((event.clientY - box.top) / this.thumb.high);
    if (column >= this.thumb.line || slice >= this.task.bins[this.other]) return;
    this.at[this.other] = slice;
    this.fill();
  }

  drawLegend() {
    const to = this.ramp.getContext('2d');
    for (let x = 0; x < 220; x++) {
      to.fillStyle = ramp(x / 219);
      to.fillRect(x, 0, 1, 12);
    }
    const has = this.key !== null && this.range_;
    this.ramp.hidden = this.low.hidden = this.high.hidden = !has;
    if (!has) return;
    const unit = this.task.measure.get(this.key).unit;
    this.low.textContent = figure(this.range_[0], unit);
    this.high.textContent = figure(this.range_[1], unit) + (this.scale.log ? ' (logarithmic)' : '');
  }

  // ---- mouse and keys

  where(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - 2) / this.cell);
    const row = Math.floor((event.clientY - box.top - 2) / this.cell);
    if (row < 0 || column < 0 || row >= this.rows || column >= this.columns) return null;
    return this.binAt(row, column);
  }

  hover(event) {
    const bin = this.where(event);
    if (!bin) return this.box.hide();
    const fact = this.facts(bin);
    const box = this.stage.getBoundingClientRect();
    const lines = [this.name(bin)];
    if (this.key !== null) lines.push(`${this.task.measure.get(this.key).label} ${fact ? figure(fact.value, this.task.measure.get(this.key).unit) : MISSING}`);
    return this.box.show(event.clientX - box.left, event.clientY - box.top, lines);
  }

  click(event) {
    const bin = this.where(event);
    if (bin) this.pick(bin);
  }

  press(event) {
    const { task } = this;
    const bin = [...this.at];
    const [down, across] = this.axes;
    const { other } = this;
    const wrap = down === null ? this.columns : 0;
    const move = {
      ArrowLeft: [across, -1], ArrowRight: [across, 1],
      ArrowUp: wrap ? [across, -wrap] : [down, -1], ArrowDown: wrap ? [across, wrap] : [down, 1],
      PageUp: other === undefined ? null : [other, -1], PageDown: other === undefined ? null : [other, 1],
      Home: [across, -Infinity], End: [across, Infinity], Enter: [across, 0], ' ': [across, 0],
    }[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [axis, by] = move;
    bin[axis] = Math.min(Math.max(bin[axis] + by, 0), task.bins[axis] - 1);
    this.pick(bin);
  }

  pick(bin) {
    this.at = bin;
    select(this.task, numberOf(bin.map((at, axis) => at * this.task.sizes[axis]), this.task.counts), { from: this });
  }

  follow(from) {
    this.isPicked = selection.task === this.task && selection.number !== null;
    if (!this.isPicked) return this.draw();
    const cell = cellOf(selection.number, this.task.counts);
    this.at = cell.map((at, axis) => Math.floor(at / this.task.sizes[axis]));
    this.tellSliders();
    this.draw();
    this.tabulate();
    return this.tell(from === this && !this.task.rows ? null : rowOf(this.task, selection.number));
  }

  // ---- words

  // Whether the slice in the picture is that of the selected block.
  isHere() {
    if (!this.isPicked) return false;
    const cell = cellOf(selection.number, this.task.counts);
    return cell.every((at, axis) => Math.floor(at / this.task.sizes[axis]) === this.at[axis]);
  }

  range(bin, axis) {
    const first = bin[axis] * this.task.sizes[axis];
    const last = Math.min(first + this.task.sizes[axis], this.task.counts[axis]) - 1;
    return first === last ? String(first) : `${first}–${last}`;
  }

  name(bin) { return `(${bin.map((_, axis) => this.range(bin, axis)).join(', ')})`; }

  // The block, or the bin, as rows of text.
  tell(found) {
    const { task } = this;
    const cell = cellOf(selection.number, task.counts);
    const rows = [];
    const title = found || task.rows ? cellText(cell) : this.name(this.at);
    let state = 'Nothing is recorded of it.';
    if (found) {
      const { rows: data_, at } = found;
      const flags = data_.flags[at];
      state = flags & 1 ? (flags & 2 ? 'Done in this run.' : 'Done before this run, or without being run.') : 'Not done.';
      if (task.origin) {
        const low = cell.map((c, axis) => task.origin[axis] + c * task.step[axis]);
        const high = low.map((l, axis) => Math.min(l + task.step[axis], task.limit ? task.limit[axis] : Infinity));
        rows.push(['writes', low.map((l, axis) => `${whole(l)} to ${whole(high[axis])}`).join(', ')]);
      }
      rows.push([task.worker, data_.worker[at] >= 0 ? String(data_.worker[at]) : MISSING]);
      rows.push(['sent', flags & 2 ? `+${longDuration(data_.sent[at])}` : MISSING], ['returned', flags & 2 ? `+${longDuration(data_.returned[at])}` : MISSING]);
      for (const m of task.measures) rows.push([m.label, figure(data_.values[m.key]?.[at], m.unit)]);
      if (!task.measure.has('failures')) rows.push(['failed attempts', whole(data_.failures[at])]);
    } else if (!task.rows) {
      const number = numberOf(this.at, task.bins);
      state = `A bin: ${count(task.known[number], task.noun)} recorded, ${whole(task.done[number])} done.`;
      for (const m of task.measures) rows.push([`${m.label}, mean / most`, `${figure(task.mean[m.key][number], m.unit)} / ${figure(task.most[m.key][number], m.unit)}`]);
    }
    this.inspect.replaceChildren(
      make('h4', { tabindex: '-1' }, `${found || task.rows ? task.noun : 'bin'} ${title}`), make('p', { class: 'hint' }, state),
      make('table', {}, make('tbody', {}, ...rows.map(([name, value]) => make('tr', {}, make('th', { scope: 'row' }, name), make('td', name === 'writes' ? { class: 'roi' } : {}, value))))));
  }

  tabulate() {
    if (!this.table.open) return;
    const unit = this.key === null ? 'n' : this.task.measure.get(this.key).unit;
    const label = this.key === null ? 'done' : this.task.measure.get(this.key).label;
    const [rows, columns] = [Math.min(this.rows, 200), Math.min(this.columns, 200)];
    const head = make('tr', {}, make('th', { scope: 'col' }, label));
    for (let c = 0; c < columns; c++) head.append(make('th', { scope: 'col', class: 'num' }, this.axes[0] === null ? `+${c}` : this.range(this.binAt(0, c), this.axes[1])));
    const body = make('tbody');
    for (let r = 0; r < rows; r++) {
      const line = make('tr', {}, make('th', { scope: 'row' }, this.range(this.binAt(r, 0), this.axes[0] ?? this.axes[1])));
      for (let c = 0; c < columns; c++) {
        const bin = this.binAt(r, c);
        const fact = bin && this.facts(bin);
        line.append(make('td', { class: 'num' }, !fact ? '' : this.key === null ? String(fact.done) : figure(fact.value, unit)));
      }
      body.append(line);
    }
    $('div', this.table).replaceChildren(make('table', {}, make('thead', {}, head), body));
  }
}
