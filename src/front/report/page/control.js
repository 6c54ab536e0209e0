// SPDX-License-Identifier: Apache-2.0
// Looking around: pointer, wheel, keys, and the tip for what is pointed at.
'use strict';

const tip = document.getElementById('tip');
let pointer = null;   // {x, y} over the pane
let selected = null;  // {t, chain}: a clicked activity, the first of the chain, with what led to it
let grip = null;      // while dragging: {x, y, from, to, top, moved}
let frame = 0;

function redraw() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
}

// ---- Finding what is at a point.

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
  if (point.x < view.left || point.x > view.width - kRight || point.y < kAxis) return null;
  const row = visibleRows().find((r) => point.y >= toY(r) && point.y < toY(r) + r.height);
  if (!row || row.device < 0) return null;
  const timeline = timelines[row.timeline], y = point.y - toY(row), time = toTime(point.x), reach = toTime(3) - toTime(0);
  const found = {t: row.timeline, device: row.device, time, i: -1, memory: row.memory > 0};
  if (found.memory) return found;
  const lanes = timeline.lanes[row.device];
  if (y < row.box) {
    for (const [lane, near] of [[kCompute, 0], [kHost, 0], [kCompute, reach], [kHost, reach]])
      if (found.i < 0) found.i = nearest(timeline, lanes[lane], time, near);
  } else if (y < row.box + 2 + row.strip) {
    found.i = nearest(timeline, lanes[kTransfer], time, reach);
  }
  return found;
}

// ---- The layer over the picture: the time pointed at, the box pointed at, the chain of the selected one.

// {x, y, width, height} of an activity's box on the pane.
function placeOf(t, i) {
  const timeline = timelines[t], row = rows[rowOf[t][timeline.columns.device[i]]], lane = timeline.columns.lane[i];
  const x = Math.max(-9, toX(timeline.begin[i])), y = toY(row);
  return {
    x, y: y + (lane === kTransfer ? row.box + 2 : lane === kHost ? row.box / 4 : 0),
    width: Math.max(1, Math.min(view.width + 9, toX(timeline.end[i])) - x),
    height: lane === kTransfer ? row.strip : lane === kHost ? row.box / 2 : row.box,
  };
}

function outline(timeline, t, i, colour, width) {
  const place = placeOf(t, i);
  overlay.strokeStyle = colour;
  overlay.lineWidth = width;
  overlay.strokeRect(place.x, place.y, place.width, place.height);
  if (timeline.columns.lane[i] !== kTransfer) return;
  overlay.beginPath();
  traceArrow(overlay, timeline, t, i);
  overlay.stroke();
}

// One line along the lower edge of its boxes, and from device to device where transfers go.
function drawPath(timeline, t) {
  const height = (device) => { const row = rows[rowOf[t][device]]; return toY(row) + row.box - 3; };
  const {device, peer} = timeline.columns, path = timeline.figures.path.activities;
  overlay.beginPath();
  path.forEach((i, k) => {
    const end = k + 1 < path.length ? Math.min(timeline.end[i], Math.max(timeline.begin[i], timeline.begin[path[k + 1]])) : timeline.end[i];
    overlay.lineTo(toX(timeline.begin[i]), height(device[i]));
    overlay.lineTo(toX(end), height(isTransfer(timeline, i) ? peer[i] : device[i]));
  });
  overlay.lineJoin = 'round';
  for (const [colour, width] of [[colours.ground, 5], [colours.ink, 2.5]]) {
    overlay.strokeStyle = colour;
    overlay.lineWidth = width;
    overlay.stroke();
  }
}

function drawOverlay() {
  overlay.clearRect(0, 0, view.width, view.height);
  withClip(overlay, () => {
    if (options.path) timelines.forEach(drawPath);
    drawFound();
    if (selected) for (const i of selected.chain) outline(timelines[selected.t], selected.t, i, colours.ink, 2);
    if (!pointer || grip) return;
    overlay.fillStyle = colours.faint;
    overlay.fillRect(Math.round(pointer.x), 0, 1, view.height);
    const here = at(pointer);
    if (here && here.i >= 0) outline(timelines[here.t], here.t, here.i, colours.ink, 2.5);
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

// Beside a point of the window.
function putTip(said, x, y) {
  tip.hidden = !said;
  if (!said) return;
  fillTip(said);
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, x + 16 + box.width > innerWidth ? x - 12 - box.width : x + 16) + 'px';
  tip.style.top = Math.max(4, Math.min(y + 16, innerHeight - box.height - 4)) + 'px';
}

function showTip(event) {
  const found = pointer && !grip && at(pointer);
  const said = !found ? null : found.i >= 0 ? describe(timelines[found.t], found.i)
    : found.memory ? describeMemory(timelines[found.t], found.device, found.time) : null;
  putTip(said, event.clientX, event.clientY);
}

// ---- Selecting.

function select(t, i) {
  selected = i >= 0 ? {t, chain: chainOf(timelines[t], i)} : null;
}

// Does for keys what a click does: brings the box into view and says what it is.
function selectByKey(t, i) {
  if (i < 0) return;
  select(t, i);
  const timeline = timelines[t], row = rows[rowOf[t][timeline.columns.device[i]]], span = view.to - view.from;
  if (timeline.begin[i] < view.from || timeline.end[i] > view.to) look(timeline.begin[i] - span / 2, timeline.begin[i] + span / 2);
  if (row.y < chart.scrollTop || row.y + row.height > chart.scrollTop + view.height - kAxis) chart.scrollTop = row.y - view.height / 2;
  const middle = toX((timeline.begin[i] + timeline.end[i]) / 2);
  if (middle < chart.scrollLeft || middle > chart.scrollLeft + chart.clientWidth) chart.scrollLeft = middle - chart.clientWidth / 2;
  drawOverlay();
  const place = placeOf(t, i), box = pane.getBoundingClientRect();
  putTip(describe(timeline, i), box.left + place.x, box.top + place.y + place.height);
}

// The box after the selected one on its device (step: 1), or before it (-1); at first the first that is seen.
function selectNext(step) {
  if (!selected) {
    if (timelines[0].devices.length) selectByKey(0, nearest(timelines[0], timelines[0].lanes[0][kCompute], Math.max(0, view.from), Infinity));
    return;
  }
  const timeline = timelines[selected.t], i = selected.chain[0];
  const {numbers} = timeline.lanes[timeline.columns.device[i]][kCompute], at = numbers.indexOf(i);
  if (at >= 0) return selectByKey(selected.t, numbers[at + step] ?? i);
  selectByKey(selected.t, nearest(timeline, timeline.lanes[timeline.columns.device[i]][kCompute], timeline.begin[i], Infinity));
}

function selectCause() {
  if (selected) selectByKey(selected.t, selected.chain[1] ?? -1);
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
  if (pointer && pointer.x < view.left && !event.ctrlKey) return;  // over the names it scrolls
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
  const shift = (grip.x - event.clientX) * (grip.to - grip.from) / (view.width - view.left - kRight);
  look(grip.from + shift, grip.to + shift);
  chart.scrollTop = grip.top + grip.y - event.clientY;
}

function onUp(event) {
  const clicked = grip && !grip.moved;
  grip = null;
  pane.classList.remove('moving');
  if (!clicked) return;
  const here = at(pointer);
  select(here ? here.t : 0, here ? here.i : -1);
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
  m: () => toggle('memory'), t: () => toggle('transfers'), c: () => toggle('path'), d: () => toggle('byDevice'),
  n: () => found.hits.length ? stepFound(1) : selectNext(1), N: () => stepFound(-1), '/': () => document.getElementById('find').focus(),
  p: () => selectNext(-1), w: selectCause,
  Escape: () => { selected = null; tip.hidden = true; drawOverlay(); },
};

// ---- The tools.

function toggle(name) {
  const input = document.getElementById(name);
  if (!input.closest('label').hidden) input.click();
}

function bindTools() {
  const transfers = timelines.some((timeline) => timeline.transfers.numbers.length);
  const path = timelines.some((timeline) => timeline.figures.path.activities.length > 1);
  const needed = {memory: mostMemory > 0, transfers, path, byDevice: timelines.length > 1};
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

// The filters stand in the address, so that what one looks at can be handed on: #stage=2&microbatch=4.
function readFilters() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(chosen)) {
    const input = document.getElementById(name);
    input.value = asked.get(name) ?? '';
    if (input.selectedIndex < 0) input.value = '';
    chosen[name] = input.value === '' ? -1 : Number(input.value);
  }
  redraw();
}

function bindFilters() {
  for (const name of Object.keys(chosen)) {
    const input = document.getElementById(name), numbers = numbersIn(name);
    input.closest('label').hidden = numbers.length < 2;
    for (const number of numbers) input.append(new Option(number, number));
    input.addEventListener('change', () => {
      const asked = Object.keys(chosen).map((key) => [key, document.getElementById(key).value]).filter(([, value]) => value !== '');
      location.hash = new URLSearchParams(asked);
    });
  }
  addEventListener('hashchange', readFilters);
  readFilters();
}

// ---- Beginning.

// The longest name of a row and the share beside it have room, unless a name is very long.
function roomForNames() {
  picture.font = '13px system-ui, sans-serif';
  const widest = Math.max(0, ...timelines.flatMap((timeline) => timeline.devices.map((name) => picture.measureText(name).width)));
  return Math.max(view.width < 800 ? 104 : 150, Math.min(220, view.width / 3, widest + 58));
}

function resize() {
  pane.style.height = Math.min(chart.clientHeight, content.offsetHeight) + 'px';
  view.width = pane.clientWidth;
  view.height = pane.clientHeight;
  view.left = roomForNames();
  view.scale = devicePixelRatio;
  for (const context of [picture, overlay]) {
    context.canvas.width = Math.round(view.width * view.scale);
    context.canvas.height = Math.round(view.height * view.scale);
    context.setTransform(view.scale, 0, 0, view.scale, 0, 0);
  }
  picture.imageSmoothingEnabled = false;
  thin.canvas.width = picture.canvas.width;
  thin.canvas.height = 1;  // grows to what rows need: all of it is copied for each
  shares = new Float32Array(thin.canvas.width * tones.length);
  draw();
}

// Rows as high as lets all be seen at once, or else all boxes, within limits; what room is left then is the memory's.
function chooseSize() {
  const below = document.getElementById('devices'), room = innerHeight - chart.getBoundingClientRect().top - kAxis - 30
    - Math.min(below.offsetHeight, innerHeight / 4);
  const heightAt = (size, stretch) => {
    Object.assign(options, {size, stretch});
    arrange();
    return rows.reduce((sum, row) => sum + row.height, 4);
  };
  const size = Math.max(0.4, Math.min(0.6, room / heightAt(1, 0)), Math.min(2, room / heightAt(1, 1)));
  const boxes = heightAt(size, 0), memory = heightAt(size, 1) - boxes;
  heightAt(size, memory > 0 ? Math.max(1, Math.min(2.5, (room - boxes) / memory)) : 1);
  document.getElementById('size').value = options.size;
}

readColours();
bindTools();
makeFigures();
makeLegend();
makeDevices();
chooseSize();
resize();
bindFilters();
bindFind();
bindExport();
new ResizeObserver(resize).observe(chart);
isDark.addEventListener('change', () => { readColours(); makeLegend(); redraw(); });
chart.addEventListener('scroll', redraw);
pane.addEventListener('wheel', onWheel, {passive: false});
pane.addEventListener('pointerdown', onDown);
pane.addEventListener('pointermove', onMove);
pane.addEventListener('pointerup', onUp);
pane.addEventListener('pointercancel', () => { grip = null; });
pane.addEventListener('pointerleave', onLeave);
pane.addEventListener('dblclick', fit);
window.addEventListener('keydown', (event) => {
  const typing = event.target.matches && event.target.matches('select, input[type=range], input[type=search]');  // which have keys of their own
  if (event.ctrlKey || event.metaKey || event.altKey || typing || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
root.dataset.ready = 'yes';
