// Of one figure of the blocks: how it is spread, and how it went over the run.
class Charts {
  constructor(task, place) {
    this.task = task;
    this.key = task.main || task.measures[0].key;
    const pick = make('select', { id: `spread-${task.index}`, on: { change: (e) => this.show(e.target.value) } },
      ...task.measures.map((m) => make('option', { value: m.key }, m.label)));
    pick.value = this.key;
    this.pick = pick;
    this.spread = make('canvas', { role: 'img' });
    this.trend = make('canvas', { role: 'img' });
    this.trendTitle = make('h4');
    place.append(make('div', { class: 'controls' }, make('label', { for: pick.id }, 'Figure ', pick)),
      make('div', { class: 'pair' }, make('div', {}, make('h4', {}, `How many ${task.noun}s took how much`), make('div', {}, this.spread)),
        make('div', {}, this.trendTitle, make('div', {}, this.trend))));
    redraws.add(() => this.draw());
    onSelect(() => this.draw());
    this.trend.addEventListener('click', (e) => this.click(e));
  }

  show(key) {
    this.key = key;
    this.pick.value = key;
    this.draw();
  }

  draw() {
    if (!this.spread.parentElement.clientWidth) return;
    this.drawSpread();
    this.drawTrend();
  }

  drawSpread() {
    const m = this.task.measure.get(this.key);
    const { to, width, height } = prepare(this.spread, 210);
    const most = Math.max(...m.counts);
    const [left, right, top, bottom] = [to.measureText(whole(most)).width + 16, 8, 26, height - 24];
    const scale = scaleOf(m.min, m.max);
    const x = (value) => left + (width - left - right) * scale.part(value);
    this.axes(to, scale, m, x, left, width - right, bottom);
    to.textAlign = 'right';
    for (const tick of ticks(0, most, 4).filter(Number.isInteger)) {
      const y = bottom - (bottom - top) * (tick / most);
      to.strokeStyle = palette.hair;
      to.beginPath(); to.moveTo(left, y); to.lineTo(width - right, y); to.stroke();
      to.fillStyle = palette.soft;
      to.fillText(whole(tick), left - 6, y);
    }
    to.fillStyle = palette.accent;
    if (m.counts.length === 1) to.fillRect((left + width - right) / 2 - 8, top, 16, bottom - top);
    else {
      m.counts.forEach((n, i) => {
        const [a, b] = [x(m.edges[i]), x(m.edges[i + 1])];
        const high = n ? Math.max(1.5, (bottom - top) * (n / most)) : 0;
        to.fillRect(a, bottom - high, Math.max(1, b - a - 1), high);
      });
      ['median', '90 %', '99 %'].forEach((name, i) => {
        const at = x(m.quantiles[i]);
        to.strokeStyle = palette.ink;
        to.setLineDash([3, 3]);
        to.lineWidth = 1;
        to.beginPath(); to.moveTo(at, top - 4); to.lineTo(at, bottom); to.stroke();
        to.setLineDash([]);
        to.fillStyle = palette.ink;
        to.textAlign = at > width - 60 ? 'right' : 'left';
        to.fillText(name, at + (at > width - 60 ? -3 : 3), 6 + (i % 2) * 13);
      });
    }
    this.spread.setAttribute('aria-label', `Distribution of ${m.label}: least ${figure(m.min, m.unit)}, median ${figure(m.quantiles[0], m.unit)}, 90 percent below ${figure(m.quantiles[1], m.unit)}, most ${figure(m.max, m.unit)}`);
  }

  axes(to, scale, m, x, left, right, bottom) {
    to.fillStyle = palette.soft;
    to.strokeStyle = palette.rule;
    to.lineWidth = 1;
    to.beginPath(); to.moveTo(left, bottom); to.lineTo(right, bottom); to.stroke();
    const values = m.max > m.min ? (scale.log ? [0, 1 / 3, 2 / 3, 1].map((p) => scale.value(p)) : [0, 0.5, 1].map((p) => scale.value(p))) : [m.min];
    values.forEach((value) => {
      const at = m.max > m.min ? x(value) : (left + right) / 2;
      to.textAlign = at < left + 20 ? 'left' : at > right - 20 ? 'right' : 'center';
      to.fillText(figure(value, m.unit), at, bottom + 13);
    });
  }

  drawTrend() {
    const { task } = this;
    const binned = !task.rows;
    const m = task.measure.get(binned && task.main ? task.main : this.key);
    this.trendTitle.textContent = `${m.label} over the run, by the time at which ${task.noun}s came back`;
    const { to, width, height } = prepare(this.trend, 210);
    const [left, right, top, bottom] = [64, 8, 10, height - 24];
    const scale = scaleOf(m.min, m.max);
    const y = (value) => bottom - (bottom - top) * (m.max > m.min ? scale.part(value) : 0.5);
    let end = 0;
    let begin = 0;
    if (binned) end = task.trend ? task.trend.end : 0;
    else {
      const { flags, sent, returned } = task.rows;
      begin = Infinity;
      for (let i = 0; i < task.rows.length; i++) if (flags[i] & 2) [begin, end] = [Math.min(begin, sent[i]), Math.max(end, returned[i])];
      if (begin < end / 20 || begin === Infinity) begin = 0;
    }
    const x = (seconds) => left + 4 + ((width - left - right - 8) * (seconds - begin)) / (end - begin || 1);
    to.textAlign = 'right';
    for (const part of [0, 0.5, 1]) {
      const value = scale.value(part);
      to.strokeStyle = palette.hair;
      to.beginPath(); to.moveTo(left, y(value)); to.lineTo(width - right, y(value)); to.stroke();
      to.fillStyle = palette.soft;
      to.fillText(figure(value, m.unit), left - 6, y(value));
    }
    to.textAlign = 'center';
    for (const [tick, text] of timeTicks(begin, end, 4)) to.fillText(text, Math.min(Math.max(x(tick), left + 4), width - 2 - to.measureText(text).width / 2), bottom + 13);
    this.points = [];
    if (!end) {
      to.fillText(`No ${task.noun} was run by this run.`, (left + width) / 2, (top + bottom) / 2);
    } else if (binned) this.density(to, x, y);
    else this.dots(to, x, y, m);
    this.trend.setAttribute('aria-label', `${m.label} over the run; the figures are in the table below`);
  }

  dots(to, x, y, m) {
    const { rows } = this.task;
    const column = rows.values[m.key];
    to.fillStyle = palette.accent;
    to.globalAlpha = rows.length > 2000 ? 0.35 : 0.7;
    const radius = rows.length > 2000 ? 1.6 : 3;
    for (let i = 0; i < rows.length; i++) {
      if (!(rows.flags[i] & 2) || column[i] !== column[i]) continue;
      this.points.push([x(rows.returned[i]), y(column[i]), rows.number[i]]);
      to.beginPath();
      to.arc(x(rows.returned[i]), y(column[i]), radius, 0, 7);
      to.fill();
    }
    to.globalAlpha = 1;
    const found = selection.task === this.task && selection.number !== null && rows.at.get(selection.number);
    if (found !== undefined && found !== false && rows.flags[found] & 2 && column[found] === column[found]) {
      to.strokeStyle = palette.pick;
      to.lineWidth = 2.5;
      to.beginPath();
      to.arc(x(rows.returned[found]), y(column[found]), 6, 0, 7);
      to.stroke();
    }
  }

  density(to, x, y) {
    const { trend } = this.task;
    const values = trend.edges.length - 1;
    const times = trend.counts.length / values;
    const most = trend.counts.reduce((a, b) => Math.max(a, b), 1);
    const wide = x(trend.end / times) - x(0);
    for (let t = 0; t < times; t++) {
      for (let v = 0; v < values; v++) {
        const n = trend.counts[t * values + v];
        if (!n) continue;
        to.globalAlpha = 0.12 + 0.88 * Math.sqrt(n / most);
        to.fillStyle = palette.accent;
        const [low, high] = [y(trend.edges[v]), y(trend.edges[v + 1])];
        to.fillRect(x((t * trend.end) / times), high, wide + 0.4, Math.max(1.5, low - high));
      }
    }
    to.globalAlpha = 1;
    to.strokeStyle = palette.pick;
    to.lineWidth = 2;
    to.beginPath();
    let drawn = false;
    trend.mean.forEach((value, t) => {
      if (value !== value) { drawn = false; return; }
      const at = x(((t + 0.5) * trend.end) / times);
      if (drawn) to.lineTo(at, y(value)); else to.moveTo(at, y(value));
      drawn = true;
    });
    to.stroke();
  }

  click(event) {
    const box = this.trend.getBoundingClientRect();
    const [mx, my] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    let least = 144;
    for (const [px, py, number] of this.points) {
      const off = (px - mx) ** 2 + (py - my) ** 2;
      if (off < least) { least = off; best = number; }
    }
    if (best !== null) select(this.task, best, { from: this });
  }
}
