// Drawing: only what is visible, and never more boxes than pixels.
'use strict';

const kLeft = 150, kRight = 14, kAxis = 30, kHead = 26, kGap = 9, kStrip = 6, kPeak = 7, kMostArrows = 2500;
const kThin = 3;       // boxes below this many pixels share columns of one pixel
const kPatterned = 5;  // from this width on boxes have their pattern

const chart = document.getElementById('chart'), content = document.getElementById('content'), pane = document.getElementById('pane');
const picture = document.getElementById('picture').getContext('2d'), overlay = document.getElementById('overlay').getContext('2d');

const view = {from: 0, to: lastTime, width: 0, height: 0};
const options = {memory: mostMemory > 0, transfers: true, byDevice: false, size: 1};
let rows = [];    // from top to bottom: {y, height, timeline, device (-1: a headline), box, strip, memory}
let rowOf = [];   // [timeline][device]
let colours = {};

const toX = (time) => kLeft + (time - view.from) / (view.to - view.from) * (view.width - kLeft - kRight);
const toTime = (x) => view.from + (x - kLeft) / (view.width - kLeft - kRight) * (view.to - view.from);

// ---- Where the rows are.

function arrange() {
  rows = [];
  rowOf = timelines.map(() => []);
  let y = 4;
  const add = (row) => { rows.push({y, ...row}); y += row.height; };
  const addDevice = (timeline, device) => {
    const size = options.size, box = Math.round(24 * size), gap = kGap * Math.min(1, size);
    const strip = options.transfers && timelines[timeline].transfers.numbers.length ? kStrip * Math.min(1, size) : 0;
    const memory = options.memory && timelines[timeline].memory[device] ? Math.round(36 * size) : 0;
    rowOf[timeline][device] = rows.length;
    add({timeline, device, box, strip, memory, gap, height: box + (strip && strip + 2) + (memory && memory + kPeak) + gap});
  };
  if (options.byDevice) {
    const devices = Math.max(...timelines.map((timeline) => timeline.devices.length));
    for (let device = 0; device < devices; ++device)
      timelines.forEach((timeline, t) => { if (device < timeline.devices.length) addDevice(t, device); });
  } else {
    timelines.forEach((timeline, t) => {
      if (timelines.length > 1) add({timeline: t, device: -1, height: kHead});
      timeline.devices.forEach((_, device) => addDevice(t, device));
    });
  }
  content.style.height = kAxis + y + 'px';
}

function visibleRows() {
  const top = chart.scrollTop, bottom = top + view.height - kAxis;
  return rows.filter((row) => row.y + row.height > top && row.y < bottom);
}
const toY = (row) => kAxis + row.y - chart.scrollTop;

// ---- Looks.

const patterns = page.looks.map((look) => {
  const tile = document.createElement('canvas');
  tile.width = tile.height = page.tile;
  const context = tile.getContext('2d');
  context.fillStyle = look.colour;
  context.fillRect(0, 0, page.tile, page.tile);
  context.strokeStyle = '#0006';
  if (look.pattern) context.stroke(new Path2D(look.pattern));
  return look.pattern ? context.createPattern(tile, 'repeat') : look.colour;
});

function readColours() {
  const style = getComputedStyle(root);
  for (const name of ['ground', 'ink', 'faint', 'line', 'stripe', 'wire']) colours[name] = style.getPropertyValue('--' + name);
}

// ---- One row.

// Boxes too thin to be drawn by themselves become columns of a pixel, in an image of one line that is then stretched over the lane: tens of
// thousands of rectangles would take too long for moving smoothly.
const line = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgb = page.looks.map((look) => [1, 3, 5].map((at) => parseInt(look.colour.slice(at, at + 2), 16)));
let shares = new Float32Array(0);  // [column][look]: how much of the column it fills

function addThin(look, x0, x1) {
  const last = Math.min(x1, line.canvas.width);
  for (let column = Math.max(0, Math.floor(x0)); column < last; ++column)
    shares[column * rgb.length + look] += Math.min(x1, column + 1) - Math.max(x0, column);
}

// Each column is the mean of what lies in it, paler where much is idle. Returns how many columns there are, and forgets them.
function drawThin(y, height) {
  const width = line.canvas.width, image = line.createImageData(width, 1);
  let columns = 0;
  for (let column = 0; column < width; ++column) {
    let sum = 0, red = 0, green = 0, blue = 0;
    for (let look = 0; look < rgb.length; ++look) {
      const share = shares[column * rgb.length + look];
      sum += share;
      red += share * rgb[look][0];
      green += share * rgb[look][1];
      blue += share * rgb[look][2];
    }
    if (sum === 0) continue;
    ++columns;
    image.data.set([red / sum, green / sum, blue / sum, 255 * Math.max(0.25, Math.min(1, sum))], 4 * column);
  }
  line.putImageData(image, 0, 0);
  picture.drawImage(line.canvas, 0, y, width, height);
  shares.fill(0);
  return columns;
}

// Where the label has no room its letter may have.
function drawLabel(timeline, i, x0, x1, y, height) {
  const whole = labelOf(timeline, i), text = x1 - x0 < whole.length * 6.6 + 5 ? page.looks[timeline.look[i]].letter : whole;
  if (x1 - x0 < 11 || height < 12) return;
  picture.font = '12px system-ui, sans-serif';
  picture.textAlign = 'center';
  const x = (Math.max(x0, kLeft) + Math.min(x1, view.width - kRight)) / 2;
  if (page.looks[timeline.look[i]].pattern) {
    picture.strokeStyle = page.looks[timeline.look[i]].colour;
    picture.lineWidth = 4;
    picture.strokeText(text, x, y + height / 2 + 4);
  }
  picture.fillStyle = '#000';
  picture.fillText(text, x, y + height / 2 + 4);
}

// Returns how many boxes and columns were drawn.
function drawLane(timeline, lane, y, height, labels) {
  let drawn = 0, thin = false;
  const wide = [];
  visitLane(timeline, lane, toTime(kLeft), toTime(view.width - kRight), (i) => {
    const x0 = Math.max(kLeft - 20, toX(timeline.begin[i])), x1 = Math.min(view.width + 20, toX(timeline.end[i]));
    if (x1 - x0 >= kThin) { wide.push(i, x0, x1); return; }
    addThin(timeline.look[i], x0, Math.max(x1, x0 + 0.01));
    thin = true;
  });
  if (thin) drawn += drawThin(y, height);
  for (let k = 0; k < wide.length; k += 3) {
    const i = wide[k], x0 = wide[k + 1], x1 = wide[k + 2], look = timeline.look[i], patterned = x1 - x0 >= kPatterned;
    picture.fillStyle = patterned ? patterns[look] : page.looks[look].colour;
    picture.fillRect(x0, y, x1 - x0 - (patterned ? 0.7 : 0), height);
    if (labels) drawLabel(timeline, i, x0, x1, y, height);
  }
  return drawn + wide.length / 3;
}

// [x, point] where the curve changes: of the points in one column of a pixel the largest, so that no peak is lost.
function memorySteps(memory) {
  const steps = [], last = memory.time.length;
  let i = Math.max(0, firstWhere(last, (j) => memory.time[j] > view.from) - 1);
  for (; i < last && memory.time[i] <= view.to; ++i) {
    const x = Math.max(kLeft, Math.floor(toX(memory.time[i])));
    const step = steps[steps.length - 1];
    if (!step || step[0] !== x) steps.push([x, i, i]);
    else { if (memory.total[i] > memory.total[step[1]]) step[1] = i; step[2] = i; }
  }
  // After a column that shows its largest point the curve goes on from its last one.
  const out = [];
  for (const [x, largest, final] of steps) {
    out.push([x, largest]);
    if (final !== largest) out.push([x + 1, final]);
  }
  return out;
}

function drawMemory(timeline, row, floor) {
  const memory = timeline.memory[row.device], scale = row.memory / mostMemory, steps = memorySteps(memory);
  const right = Math.min(view.width - kRight, toX(timeline.last));
  for (let c = page.memory.length; c-- > 0;) {
    picture.fillStyle = page.memory[c].colour;
    picture.beginPath();
    let top = floor;
    for (const [x, i] of steps) {
      picture.lineTo(x, top);
      picture.lineTo(x, top = floor - memory.tops[c][i] * scale);
    }
    if (right > kLeft) picture.lineTo(right, top);
    picture.lineTo(Math.max(kLeft, right), floor);
    picture.fill();
  }
  const x = toX(memory.time[memory.peak]), y = floor - memory.total[memory.peak] * scale;
  if (x < kLeft || x > view.width - kRight) return;
  picture.fillStyle = '#d55e00';
  picture.beginPath();
  picture.moveTo(x, y);
  picture.lineTo(x - 4, y - 6);
  picture.lineTo(x + 4, y - 6);
  picture.fill();
}

function drawNames(row, y) {
  const timeline = timelines[row.timeline];
  picture.textAlign = 'left';
  if (row.device < 0) {
    const ratio = row.timeline ? ' (' + percentText(timeline.makespan / timelines[0].makespan - 1) + ')' : '';
    picture.font = '600 13px system-ui, sans-serif';
    picture.fillStyle = colours.ink;
    picture.fillText(timeline.title + ': ' + timeText(timeline.makespan, timeline.seconds) + ratio, 8, y + 18);
    return;
  }
  picture.font = Math.min(13, Math.max(7, 0.9 * row.height)) + 'px system-ui, sans-serif';
  picture.fillStyle = colours.ink;
  const name = timeline.devices[row.device] + (options.byDevice ? ', ' + timeline.title : '');
  picture.fillText(name, 8, y + row.box / 2 + 5 * Math.min(1, options.size), kLeft - 16);
  if (row.memory < 14) return;
  const memory = timeline.memory[row.device];
  picture.font = '11px system-ui, sans-serif';
  picture.fillStyle = colours.faint;
  const peak = 'peak ' + amountText(memory.total[memory.peak], timeline.seconds);
  picture.fillText(peak, 8, y + row.height - row.gap - row.memory / 2 + 4, kLeft - 16);
}

function percentText(share) {
  return (share < 0 ? '\u2212' : '+') + shortDecimal(Math.abs(share) * 100) + ' %';
}

function drawRow(row) {
  const timeline = timelines[row.timeline], y = toY(row);
  if (row.device < 0) return 0;
  const lanes = timeline.lanes[row.device];
  picture.fillStyle = colours.stripe;
  picture.fillRect(kLeft, y, view.width - kLeft - kRight, row.box);
  let drawn = drawLane(timeline, lanes[kHost], y + row.box / 4, row.box / 2, false);
  drawn += drawLane(timeline, lanes[kCompute], y, row.box, true);
  if (row.strip) drawn += drawLane(timeline, lanes[kTransfer], y + row.box + 2, row.strip, false);
  if (row.memory) drawMemory(timeline, row, y + row.height - row.gap);
  return drawn;
}

// ---- The whole.

function tickStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * (1 - 1e-9));
}

function drawAxis() {
  const step = tickStep(view.to - view.from, Math.max(2, (view.width - kLeft) / 130));
  const [unit, suffix] = unitOf(Math.max(Math.abs(view.from), Math.abs(view.to)), inSeconds);
  const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)));
  picture.font = '11px system-ui, sans-serif';
  picture.textAlign = 'center';
  for (let i = Math.ceil(view.from / step); i * step <= view.to; ++i) {
    const x = Math.round(toX(i * step)) + 0.5;
    picture.fillStyle = colours.line;
    picture.fillRect(x - 0.5, kAxis - 8, 1, view.height);
    picture.fillStyle = colours.faint;
    picture.fillText((i * step / unit).toFixed(digits) + suffix, x, 15);
  }
  // Which part of the whole is shown.
  const width = view.width - kLeft - kRight;
  picture.fillStyle = colours.line;
  picture.fillRect(kLeft, kAxis - 8, width, 3);
  picture.fillStyle = colours.faint;
  const from = Math.max(0, view.from / lastTime), to = Math.min(1, view.to / lastTime);
  picture.fillRect(kLeft + from * width, kAxis - 8, Math.max(2, (to - from) * width), 3);
}

// One arrow: from the sender's strip, where the transfer begins, to the receiver's boxes, where it ends.
function traceArrow(context, timeline, t, i) {
  if (timeline.columns.device[i] === timeline.columns.peer[i]) return;
  const from = rows[rowOf[t][timeline.columns.device[i]]], to = rows[rowOf[t][timeline.columns.peer[i]]];
  const down = to.y > from.y, y0 = toY(from) + from.box + 2 + from.strip / 2, y1 = toY(to) + (down ? 0 : to.box);
  if (Math.max(y0, y1) < kAxis || Math.min(y0, y1) > view.height) return;
  const x0 = toX(timeline.begin[i]), x1 = toX(timeline.end[i]), angle = Math.atan2(y1 - y0, x1 - x0);
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  for (const turn of [-0.4, 0.4]) {
    context.moveTo(x1, y1);
    context.lineTo(x1 - 6 * Math.cos(angle + turn), y1 - 6 * Math.sin(angle + turn));
  }
}

// False where there are too many to be told apart.
function drawArrows() {
  const counts = timelines.map((timeline) => countLane(timeline, timeline.transfers, view.from, view.to));
  if (counts.reduce((a, b) => a + b, 0) > kMostArrows) return false;
  picture.strokeStyle = colours.wire;
  picture.lineWidth = 0.8;
  picture.globalAlpha = 0.65;
  picture.beginPath();
  timelines.forEach((timeline, t) =>
    visitLane(timeline, timeline.transfers, view.from, view.to, (i) => traceArrow(picture, timeline, t, i)));
  picture.stroke();
  picture.globalAlpha = 1;
  return true;
}

function withClip(context, draw) {
  context.save();
  context.beginPath();
  context.rect(kLeft, kAxis, view.width - kLeft - kRight, view.height - kAxis);
  context.clip();
  draw();
  context.restore();
}

function draw() {
  const begin = performance.now();
  const shown = visibleRows();
  let drawn = 0, arrows = true;
  picture.fillStyle = colours.ground;
  picture.fillRect(0, 0, view.width, view.height);
  drawAxis();
  withClip(picture, () => {
    for (const row of shown) drawn += drawRow(row);
    if (options.transfers) arrows = drawArrows();
  });
  picture.save();
  picture.beginPath();
  picture.rect(0, kAxis, view.width, view.height);
  picture.clip();
  for (const row of shown) drawNames(row, toY(row));
  picture.restore();
  document.getElementById('arrows-hidden').hidden = arrows;
  drawOverlay();
  root.dataset.drawn = drawn;
  root.dataset.milliseconds = (performance.now() - begin).toFixed(2);
}
