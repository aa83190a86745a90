// The timeline: a lane a worker, a bar a block; where there are too many blocks, how busy each lane was.
class Gantt {
  constructor(place) {
    this.lanes = [];
    this.low = 0;
    this.high = data.wall || 0;
    for (const task of tasks) if (task.n) this.read(task);
    if (!this.lanes.length) return;
    this.canvas = make('canvas', { 'aria-hidden': 'true' });
    this.stage = make('div', {
      class: 'stage', tabindex: '0', role: 'application', 'aria-roledescription': 'timeline', 'data-part': 'gantt-stage',
      'aria-label': `Timeline of ${count(this.lanes.length, 'worker')}. Left and right go from block to block, up and down from worker to worker. The workers are also a table below.`,
      on: {
        click: (e) => this.click(e), keydown: (e) => this.press(e),
        mousemove: (e) => this.hover(e), mouseleave: () => this.box.hide(),
      },
    }, this.canvas);
    this.box = hoverBox(this.stage);
    place.append(make('div', { class: 'frame' }, this.stage));
    const many = tasks.filter((task) => this.lanes.some((lane) => lane.task === task));
    if (many.length > 1) {
      place.append(make('div', { class: 'legend' }, ...many.map((task) => make('span', { class: 'key' }, make('i', { class: `swatch c${task.index % 8}` }), task.id))));
    }
    redraws.add(() => this.draw());
    onSelect(() => this.draw());
  }

  read(task) {
    if (task.rows) {
      const lanes = new Map();
      const { flags, worker, sent, returned } = task.rows;
      for (let at = 0; at < task.rows.length; at++) {
        if (!(flags[at] & 2)) continue;
        if (!lanes.has(worker[at])) lanes.set(worker[at], []);
        lanes.get(worker[at]).push(at);
        this.high = Math.max(this.high, returned[at] + task.began);
      }
      for (const id of [...lanes.keys()].sort((a, b) => a - b)) {
        const rows = lanes.get(id).sort((a, b) => sent[a] - sent[b]);
        this.lanes.push({ task, name: id < 0 ? `no ${task.worker}` : `${task.worker} ${id}`, id, rows });
      }
    } else if (task.busy) {
      const parts = task.busy.length / task.lanes.length;
      task.lanes.forEach(([first, last], lane) => this.lanes.push({
        task, name: first === last ? `${task.worker} ${first}` : `${task.worker} ${first}–${last}`, id: first, last, parts,
        busy: task.busy.subarray(lane * parts, (lane + 1) * parts),
      }));
      this.high = Math.max(this.high, task.began + task.trend.end);
    }
  }

  // ---- drawing

  draw() {
    const wide = this.stage.clientWidth;
    if (!wide) return;
    this.tall = this.lanes.length <= 12 ? 24 : this.lanes.length <= 40 ? 14 : 8;
    this.gap = this.tall > 10 ? 5 : 2;
    const { to, width, height } = prepare(this.canvas, this.lanes.length * this.tall + 30);
    const named = this.tall >= 12;
    this.left = named ? Math.max(...this.lanes.map((lane) => to.measureText(lane.name).width)) + 12 : 34;
    this.scale = (width - this.left - 8) / (this.high - this.low || 1);
    const bottom = height - 26;
    to.strokeStyle = palette.hair;
    to.fillStyle = palette.soft;
    to.textAlign = 'center';
    for (const [tick, text] of timeTicks(this.low, this.high, width / 110)) {
      const x = this.x(tick);
      to.beginPath(); to.moveTo(x, 0); to.lineTo(x, bottom + 4); to.stroke();
      to.fillText(text, Math.min(x, width - 2 - to.measureText(text).width / 2), bottom + 16);
    }
    this.lanes.forEach((lane, n) => {
      const top = n * this.tall + 2;
      to.fillStyle = palette.soft;
      to.textAlign = 'right';
      if (named) to.fillText(lane.name, this.left - 8, top + this.tall / 2 - 1);
      else if (n % 8 === 0) to.fillText(String(lane.id), this.left - 8, top + this.tall / 2);
      to.fillStyle = palette.task[lane.task.index % 8];
      if (lane.rows) this.bars(to, lane, top);
      else this.shades(to, lane, top);
    });
    to.globalAlpha = 1;
    this.mark(to);
  }

  bars(to, lane, top) {
    const { sent, returned } = lane.task.rows;
    const high = this.tall - this.gap;
    lane.rows.forEach((at, n) => {
      const x = this.x(sent[at] + lane.task.began);
      const wide = (returned[at] - sent[at]) * this.scale;
      to.globalAlpha = n % 2 ? 0.72 : 1; // neighbours are told apart without a gap that would look like waiting
      to.fillRect(x, top, Math.max(wide, 0.7), high);
    });
    to.globalAlpha = 1;
  }

  shades(to, lane, top) {
    const wide = (lane.task.trend.end * this.scale) / lane.parts;
    for (let n = 0; n < lane.parts; n++) {
      to.globalAlpha = lane.busy[n] / 255;
      const x = Math.round(this.x(lane.task.began) + n * wide);
      to.fillRect(x, top, Math.round(this.x(lane.task.began) + (n + 1) * wide) - x, this.tall - this.gap);
    }
    to.globalAlpha = 1;
  }

  mark(to) {
    const { task, number } = selection;
    const found = task && number !== null && rowOf(task, number);
    if (!found || !(found.rows.flags[found.at] & 2)) return;
    const lane = this.lanes.findIndex((l) => l.task === task && found.rows.worker[found.at] >= l.id && found.rows.worker[found.at] <= (l.last ?? l.id));
    if (lane < 0) return;
    const x = this.x(found.rows.sent[found.at] + task.began);
    const wide = Math.max(3, (found.rows.returned[found.at] - found.rows.sent[found.at]) * this.scale);
    to.strokeStyle = palette.card;
    to.lineWidth = 5;
    to.strokeRect(x, lane * this.tall + 2, wide, this.tall - this.gap);
    to.strokeStyle = palette.pick;
    to.lineWidth = 2.5;
    to.strokeRect(x, lane * this.tall + 2, wide, this.tall - this.gap);
  }

  x(seconds) { return this.left + (seconds - this.low) * this.scale; }

  // ---- mouse and keys

  // Lane and block under the mouse; bars of less than a pixel are found within three.
  where(event) {
    const box = this.canvas.getBoundingClientRect();
    const lane = this.lanes[Math.floor((event.clientY - box.top - 2) / this.tall)];
    if (!lane) return null;
    const seconds = (event.clientX - box.left - this.left) / this.scale + this.low - lane.task.began;
    if (!lane.rows) return { lane, seconds, at: null };
    const { sent, returned } = lane.task.rows;
    const near = 3 / this.scale;
    let best = null;
    let least = near;
    for (const at of lane.rows) {
      const off = Math.max(sent[at] - seconds, seconds - returned[at], 0);
      if (off < least) { best = at; least = off; }
      if (off === 0) break;
    }
    return { lane, seconds, at: best };
  }

  hover(event) {
    const found = this.where(event);
    const box = this.stage.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (!found) return this.box.hide();
    const { lane, at, seconds } = found;
    if (lane.rows && at === null) return this.box.hide();
    if (!lane.rows) {
      const part = Math.floor((seconds / lane.task.trend.end) * lane.parts);
      if (!(part >= 0 && part < lane.parts)) return this.box.hide();
      return this.box.show(x, y, [`${lane.name}, ${lane.task.id}`, `${Math.round(lane.busy[part] / 2.55)} % busy at +${longDuration(seconds + lane.task.began)}`]);
    }
    const { rows } = lane.task;
    return this.box.show(x, y, [
      `${lane.task.id} ${cellText(cellOf(rows.number[at], lane.task.counts))}, ${lane.name}`,
      `${duration(rows.returned[at] - rows.sent[at])} from +${longDuration(rows.sent[at] + lane.task.began)}`,
    ]);
  }

  click(event) {
    const found = this.where(event);
    if (found && found.at !== null) select(found.lane.task, found.lane.task.rows.number[found.at], { from: this });
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const lanes = this.lanes.filter((lane) => lane.rows);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const over = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!lanes.length || (step === undefined && over === undefined)) return;
    event.preventDefault();
    const { task, number } = selection;
    let lane = lanes.findIndex((l) => l.task === task && l.rows.some((at) => task.rows.number[at] === number));
    if (lane < 0) return this.go(lanes[0], 0);
    const here = lanes[lane].rows.findIndex((at) => task.rows.number[at] === number);
    if (step !== undefined) return this.go(lanes[lane], Math.min(Math.max(here + step, 0), lanes[lane].rows.length - 1));
    const seconds = task.rows.sent[lanes[lane].rows[here]] + task.began;
    lane = Math.min(Math.max(lane + over, 0), lanes.length - 1);
    const off = (at) => Math.abs(lanes[lane].task.rows.sent[at] + lanes[lane].task.began - seconds);
    let best = 0;
    lanes[lane].rows.forEach((at, n) => { if (off(at) < off(lanes[lane].rows[best])) best = n; });
    return this.go(lanes[lane], best);
  }

  go(lane, n) { select(lane.task, lane.task.rows.number[lane.rows[n]], { from: this }); }
}
