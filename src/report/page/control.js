// Looking around: pointer, wheel, keys, and the tip for what is pointed at.
'use strict';

const tip = document.getElementById('tip');
let pointer = null;   // {x, y} over the pane
let selected = null;  // {t, chain}: a clicked activity with what led to it
let grip = null;      // while dragging: {x, y, from, to, top, moved}
let frame = 0;

function redraw() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
}

// ---- What is at a point.

// The activity of a lane nearest to `time`, at most `reach` away; -1: none.
function nearest(timeline, lane, time, reach) {
  let best = -1, least = Infinity;
  visitLane(timeline, lane, time - reach, time + reach, (i) => {
    const away = Math.max(0, timeline.begin[i] - time, time - timeline.end[i]);
    if (away < least) { least = away; best = i; }
  });
  return best;
}

// {t, device, time, i (-1: none), memory: is it the curve}; null outside of the rows.
function at(point) {
  if (point.x < kLeft || point.x > view.width - kRight || point.y < kAxis) return null;
  const row = visibleRows().find((r) => point.y >= toY(r) && point.y < toY(r) + r.height);
  if (!row || row.device < 0) return null;
  const timeline = timelines[row.timeline], y = point.y - toY(row), time = toTime(point.x), reach = toTime(3) - toTime(0);
  const found = {t: row.timeline, device: row.device, time, i: -1, memory: row.memory > 0 && y > row.box + 2 + row.strip};
  const lanes = timeline.lanes[row.device];
  if (y < row.box) {
    for (const [lane, near] of [[kCompute, 0], [kHost, 0], [kCompute, reach], [kHost, reach]])
      if (found.i < 0) found.i = nearest(timeline, lanes[lane], time, near);
  } else if (!found.memory) {
    found.i = nearest(timeline, lanes[kTransfer], time, reach);
  }
  return found;
}

// ---- What lies over the picture: the time pointed at, the box pointed at, the chain of the selected one.

function outline(timeline, t, i, colour, width) {
  const row = rows[rowOf[t][timeline.columns.device[i]]], lane = timeline.columns.lane[i];
  const y = toY(row) + (lane === kTransfer ? row.box + 2 : lane === kHost ? row.box / 4 : 0);
  const height = lane === kTransfer ? row.strip : lane === kHost ? row.box / 2 : row.box;
  const x0 = Math.max(-9, toX(timeline.begin[i])), x1 = Math.min(view.width + 9, toX(timeline.end[i]));
  overlay.strokeStyle = colour;
  overlay.lineWidth = width;
  overlay.strokeRect(x0, y, Math.max(1, x1 - x0), height);
  if (lane !== kTransfer) return;
  overlay.beginPath();
  traceArrow(overlay, timeline, t, i);
  overlay.stroke();
}

function drawOverlay() {
  overlay.clearRect(0, 0, view.width, view.height);
  withClip(overlay, () => {
    if (selected) for (const i of selected.chain) outline(timelines[selected.t], selected.t, i, colours.ink, 2);
    if (!pointer || grip) return;
    overlay.fillStyle = colours.faint;
    overlay.fillRect(Math.round(pointer.x), 0, 1, view.height);
    const found = at(pointer);
    if (found && found.i >= 0) outline(timelines[found.t], found.t, found.i, colours.ink, 2.5);
  });
}

function fillTip([headline, lines]) {
  const parts = [document.createElement('b')];
  parts[0].textContent = headline;
  for (const [name, text] of lines) {
    const line = document.createElement('div');
    line.append(document.createElement('i'), document.createElement('span'));
    line.firstChild.textContent = name;
    line.lastChild.textContent = text;
    parts.push(line);
  }
  tip.replaceChildren(...parts);
}

function showTip(event) {
  const found = pointer && !grip && at(pointer);
  const said = !found ? null : found.i >= 0 ? describe(timelines[found.t], found.i)
    : found.memory ? describeMemory(timelines[found.t], found.device, found.time) : null;
  tip.hidden = !said;
  if (!said) return;
  fillTip(said);
  const box = tip.getBoundingClientRect();
  tip.style.left = (event.clientX + 16 + box.width > innerWidth ? event.clientX - 12 - box.width : event.clientX + 16) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 4)) + 'px';
}

// ---- Moving.

function look(from, to) {
  const span = Math.min(1.1 * lastTime, Math.max(lastTime * 1e-7, to - from)), margin = 0.05 * span;
  const start = Math.max(-margin, Math.min(lastTime + margin - span, (from + to - span) / 2));
  view.from = start;
  view.to = start + span;
  redraw();
}
function zoom(factor, time) {
  look(time - (time - view.from) * factor, time + (view.to - time) * factor);
}
function pan(share) {
  const step = share * (view.to - view.from);
  look(view.from + step, view.to + step);
}
const fit = () => look(0, lastTime);

function onWheel(event) {
  if (pointer && pointer.x < kLeft && !event.ctrlKey) return;  // over the names it scrolls
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1000);
  else zoom(Math.exp(event.deltaY * 0.0016), toTime(pointer ? pointer.x : view.width / 2));
}

function setPointer(event) {
  const box = pane.getBoundingClientRect();
  pointer = {x: event.clientX - box.left, y: event.clientY - box.top};
}

function onDown(event) {
  setPointer(event);
  pane.setPointerCapture(event.pointerId);
  grip = {x: event.clientX, y: event.clientY, from: view.from, to: view.to, top: chart.scrollTop, moved: false};
  tip.hidden = true;
}

function onMove(event) {
  setPointer(event);
  if (!grip) {
    drawOverlay();
    showTip(event);
    return;
  }
  if (Math.abs(event.clientX - grip.x) + Math.abs(event.clientY - grip.y) > 4) grip.moved = true;
  if (!grip.moved) return;
  pane.classList.add('moving');
  const shift = (grip.x - event.clientX) * (grip.to - grip.from) / (view.width - kLeft - kRight);
  look(grip.from + shift, grip.to + shift);
  chart.scrollTop = grip.top + grip.y - event.clientY;
}

function onUp(event) {
  const clicked = grip && !grip.moved;
  grip = null;
  pane.classList.remove('moving');
  if (!clicked) return;
  const found = at(pointer);
  selected = found && found.i >= 0 ? {t: found.t, chain: chainOf(timelines[found.t], found.i)} : null;
  drawOverlay();
  showTip(event);
}

function onLeave() {
  pointer = null;
  tip.hidden = true;
  drawOverlay();
}

const keys = {
  ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
  ArrowUp: () => { chart.scrollTop -= 60; }, ArrowDown: () => { chart.scrollTop += 60; },
  '+': () => zoom(0.7, (view.from + view.to) / 2), '=': () => zoom(0.7, (view.from + view.to) / 2),
  '-': () => zoom(1 / 0.7, (view.from + view.to) / 2),
  0: fit, Home: fit,
  m: () => toggle('memory'), t: () => toggle('transfers'), d: () => toggle('byDevice'),
  Escape: () => { selected = null; drawOverlay(); },
};

// ---- The tools and the legend.

function toggle(name) {
  const input = document.getElementById(name);
  if (!input.closest('label').hidden) input.click();
}

function bindTools() {
  const transfers = timelines.some((timeline) => timeline.transfers.numbers.length);
  const needed = {memory: mostMemory > 0, transfers, byDevice: timelines.length > 1};
  for (const name of Object.keys(needed)) {
    const input = document.getElementById(name);
    input.closest('label').hidden = !needed[name];
    input.checked = options[name];
    input.addEventListener('change', () => { options[name] = input.checked; arrange(); resize(); });
  }
  const size = document.getElementById('size');
  size.addEventListener('input', () => { options.size = Number(size.value); arrange(); resize(); });
  document.getElementById('fit').addEventListener('click', fit);
}

function addToLegend(list, fill, text) {
  const entry = document.createElement('span'), sample = document.createElement('canvas');
  sample.width = 22;
  sample.height = 15;
  const context = sample.getContext('2d');
  context.fillStyle = fill;
  context.fillRect(0, 0, 22, 15);
  entry.append(sample, text);
  document.getElementById(list).append(entry);
}

function makeLegend() {
  page.looks.forEach((entry, look) => {
    const there = timelines.some((timeline) => timeline.look.includes(look));
    if (there) addToLegend('kinds', patterns[look], entry.letter + ' ' + entry.meaning);
  });
  page.memory.forEach((memoryClass, c) => {
    const there = (memory) => memory && memory.tops[c].some((top, i) => top > (c ? memory.tops[c - 1][i] : 0));
    if (!timelines.some((timeline) => timeline.memory.some(there))) return;
    addToLegend('classes', memoryClass.colour, 'memory: ' + memoryClass.name);
  });
}

// ---- Beginning.

function resize() {
  pane.style.height = Math.min(chart.clientHeight, content.offsetHeight) + 'px';
  view.width = pane.clientWidth;
  view.height = pane.clientHeight;
  for (const context of [picture, overlay]) {
    context.canvas.width = Math.round(view.width * devicePixelRatio);
    context.canvas.height = Math.round(view.height * devicePixelRatio);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }
  picture.imageSmoothingEnabled = false;
  line.canvas.width = Math.ceil(view.width);
  line.canvas.height = 1;
  shares = new Float32Array(line.canvas.width * rgb.length);
  draw();
}

// Rows as high as lets all be seen at once, within limits.
function chooseSize() {
  const room = innerHeight - chart.getBoundingClientRect().top - kAxis - 60, last = rows[rows.length - 1];
  options.size = Math.max(0.6, Math.min(1.5, last ? room / (last.y + last.height) : 1));
  document.getElementById('size').value = options.size;
}

readColours();
bindTools();
makeLegend();
arrange();
chooseSize();
arrange();
resize();
new ResizeObserver(resize).observe(chart);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); redraw(); });
chart.addEventListener('scroll', redraw);
pane.addEventListener('wheel', onWheel, {passive: false});
pane.addEventListener('pointerdown', onDown);
pane.addEventListener('pointermove', onMove);
pane.addEventListener('pointerup', onUp);
pane.addEventListener('pointercancel', () => { grip = null; });
pane.addEventListener('pointerleave', onLeave);
pane.addEventListener('dblclick', fit);
window.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
root.dataset.ready = 'yes';
