// The page put together: tabs, theme, address, printing.
const panels = $$('article.task');
const tabs = $$('[role="tab"]');
const built = new Set();

function build(index) {
  if (built.has(index)) return;
  built.add(index);
  const task = tasks[index];
  const map = $('[data-part="map"]', panels[index]);
  const charts = $('[data-part="charts"]', panels[index]);
  let both = null;
  if (charts && task.n && task.measures.length) both = new Charts(task, charts);
  if (map && task.n) {
    const view = new BlockMap(task, map);
    if (both) view.onShow = (key) => both.show(key);
    const first = task.slow.length ? task.slow.number[0] : task.rows && task.rows.length ? task.rows.number[0] : null;
    if (selection.task !== task && first !== null) pending.set(index, first);
  }
}
const pending = new Map(); // what to show first, until somebody selects

function open(index, { focus = false, quiet = false } = {}) {
  tabs.forEach((tab, n) => {
    tab.setAttribute('aria-selected', String(n === index));
    tab.tabIndex = n === index ? 0 : -1;
  });
  panels.forEach((panel, n) => { panel.hidden = n !== index; });
  build(index);
  redraw();
  if (!quiet && pending.has(index) && selection.task !== tasks[index]) select(tasks[index], pending.get(index), { quiet: true, from: 'start' });
  pending.delete(index);
  if (focus) tabs[index].focus();
}

const shown = () => panels.findIndex((panel) => !panel.hidden);

tabs.forEach((tab, n) => {
  tab.addEventListener('click', () => open(n));
  tab.addEventListener('keydown', (event) => {
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open((to + tabs.length) % tabs.length, { focus: true });
  });
});

document.addEventListener('click', (event) => {
  const button = event.target.closest('button.cell');
  if (!button) return;
  event.preventDefault(); // inside a summary it would fold the details
  const task = tasks[Number(button.dataset.task)];
  if (!task.n) return;
  select(task, Number(button.dataset.cell));
  const heading = $('.inspect h4', panels[task.index]);
  if (heading) {
    heading.focus({ preventScroll: true });
    $('.card.map', panels[task.index]).scrollIntoView({ block: 'nearest' });
  }
});

onSelect(() => {
  const { task, number } = selection;
  if (task && shown() !== task.index && !printing) open(task.index);
  for (const row of $$('tr[data-cell]')) {
    row.classList.toggle('picked', Boolean(task) && Number(row.dataset.task) === task.index && Number(row.dataset.cell) === number);
  }
});

// ---- theme

const dark = matchMedia('(prefers-color-scheme: dark)');
const theme = $('#theme');
function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === 'dark' : dark.matches;
}
function tellTheme() {
  theme.setAttribute('aria-pressed', String(isDark()));
  redraw();
}
theme.addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  tellTheme();
});
dark.addEventListener('change', tellTheme);
theme.hidden = false;

// ---- print: all tasks, as on paper

$('#print').hidden = false;
$('#print').addEventListener('click', () => window.print());
let before = 0;
function toPaper() {
  if (printing) return;
  printing = true;
  before = shown();
  panels.forEach((panel, n) => { panel.hidden = false; build(n); });
  document.documentElement.dataset.printing = document.documentElement.dataset.theme || 'auto';
  document.documentElement.dataset.theme = 'light';
  redraw();
}
function toScreen() {
  if (!printing) return;
  printing = false;
  const was = document.documentElement.dataset.printing;
  if (was === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = was;
  open(before);
}
addEventListener('beforeprint', toPaper);
addEventListener('afterprint', toScreen);

// ---- begin

let width = 0;
addEventListener('resize', () => {
  if (width === document.documentElement.clientWidth) return;
  width = document.documentElement.clientWidth;
  redraw();
});

// The block that the address names, as task:cell.
function followAddress() {
  const found = /^#(\d+):([\d,]+)$/.exec(location.hash);
  const task = found && tasks[Number(found[1])];
  const cell = found && found[2].split(',').map(Number);
  if (!task || !task.n || cell.length !== task.counts.length || cell.some((at, axis) => at >= task.counts[axis])) return false;
  open(task.index, { quiet: true });
  select(task, numberOf(cell, task.counts));
  return true;
}

readColours();
if (tabs.length) tabs[0].parentElement.hidden = false;
const timeline = $('#gantt');
if (timeline) {
  new Gantt(timeline); // eslint-disable-line no-new
  if (!timeline.childElementCount) timeline.closest('section').hidden = true;
}
addEventListener('hashchange', followAddress);
if (!/^#\d+:/.test(location.hash) || !followAddress()) open(0);
tellTheme();
