// SPDX-License-Identifier: Apache-2.0
// Drawing: only what is visible, and never more boxes than pixels.
'use strict';

const kRight = 14, kAxis = 30, kHead = 26, kGap = 12, kStrip = 6, kPeak = 7, kMemory = 36, kMostArrows = 2500;
const kThin = 3;           // boxes below this many pixels share columns of one pixel
const kManyColumns = 200;  // from so many such columns on the page says what they are
const kPatterned = 5;      // from this width on boxes have their pattern and their edge

const chart = document.getElementById('chart'), content = document.getElementById('content'), pane = document.getElementById('pane');
let picture = document.getElementById('picture').getContext('2d');  // another context while draw() makes an SVG
const overlay = document.getElementById('overlay').getContext('2d');

const view = {from: 0, to: lastTime, width: 0, height: 0, left: 150, scale: 1};  // scale: pixels of the screen in one of the page
const options = {memory: mostMemory > 0, transfers: true, path: false, byDevice: false, size: 1, stretch: 1};  // stretch: of memory, beside size
let rows = [];    // from top to bottom: {y, height, timeline, device (-1: a headline), box, strip, memory}; memory has rows of its own
let rowOf = [];   // [timeline][device]: where its boxes are
let colours = {};

const toX = (time) => view.left + (time - view.from) / (view.to - view.from) * (view.width - view.left - kRight);
const toTime = (x) => view.from + (x - view.left) / (view.width - view.left - kRight) * (view.to - view.from);
const snap = (x) => Math.round(x * view.scale) / view.scale;  // edges between pixels have no colour but the boxes' own

// ---- Where the rows are.

// The boxes of all devices, then the memory of all: what flows between devices does not cross it.
function arrange() {
  rows = [];
  rowOf = timelines.map(() => []);
  let y = 4;
  const add = (row) => { rows.push({y, box: 0, strip: 0, memory: 0, ...row}); y += row.height; };
  const addBoxes = ([timeline, device]) => {
    const size = options.size, box = Math.round(24 * size), small = Math.min(1, size);
    const strip = options.transfers && timelines[timeline].transfers.numbers.length ? Math.round(kStrip * small) : 0;
    rowOf[timeline][device] = rows.length;
    add({timeline, device, box, strip, height: box + (strip && strip + 2) + Math.round(kGap * small)});
  };
  const addMemory = ([timeline, device]) => {
    if (!options.memory || !timelines[timeline].memory[device]) return;
    const memory = Math.round(kMemory * options.size * options.stretch);
    add({timeline, device, memory, height: memory + kPeak + 2});
  };
  for (const group of groupsOfRows()) {
    if (!options.byDevice && timelines.length > 1) add({timeline: group[0][0], device: -1, height: kHead});
    group.forEach(addBoxes);
    group.forEach(addMemory);
  }
  content.style.height = kAxis + y + 'px';
}

// [timeline, device] that stand together: of each timeline, or of all.
function groupsOfRows() {
  const each = timelines.map((timeline, t) => timeline.devices.map((_, device) => [t, device]));
  return options.byDevice ? [each.flat().sort((a, b) => a[1] - b[1] || a[0] - b[0])] : each.filter((group) => group.length);
}

function visibleRows() {
  const top = chart.scrollTop, bottom = top + view.height - kAxis;
  return rows.filter((row) => row.y + row.height > top && row.y < bottom);
}
const toY = (row) => kAxis + row.y - Math.round(chart.scrollTop);

// ---- Looks.

const bytesOf = (colour) => [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));

function patternOf(colour, path) {
  if (!path) return colour;
  const tile = document.createElement('canvas');
  tile.width = tile.height = page.tile;
  const context = tile.getContext('2d');
  context.fillStyle = colour;
  context.fillRect(0, 0, page.tile, page.tile);
  context.strokeStyle = '#0006';
  context.stroke(new Path2D(path));
  return Object.assign(context.createPattern(tile, 'repeat'), {colour});
}

// A tone is what a box is filled with: its look in the shade of its chunk, or that of what the filters leave out. `packed`: a pixel.
// `edge`: the colour around a box.
function makeTone(colour, path, edge) {
  const bytes = new Uint8ClampedArray([...bytesOf(colour), 255]);
  return {colour, edge, fill: patternOf(colour, path), packed: new Uint32Array(bytes.buffer)[0], patterned: path !== ''};
}

const inShade = (colour, shade) =>
  '#' + bytesOf(colour).map((byte) => Math.round(byte + shade * (255 - byte)).toString(16).padStart(2, '0')).join('');
const tones = page.looks.flatMap((look) => page.shades.map((shade) => makeTone(inShade(look.colour, shade), look.pattern, look.edge)));
const kOther = tones.length;
const toneOf = (timeline, i) => isChosen(timeline, i) ? timeline.look[i] * page.shades.length + timeline.chunk[i] : kOther;

const isDark = matchMedia('(prefers-color-scheme: dark)');

function readColours() {
  const style = getComputedStyle(root);
  for (const name of ['ground', 'ink', 'faint', 'line', 'stripe', 'wire', 'other', 'alarm'])
    colours[name] = style.getPropertyValue('--' + name).trim();
  colours.memory = page.memory.map((memoryClass) => memoryClass[isDark.matches ? 'dark' : 'light']);
  tones[kOther] = makeTone(colours.other, '', colours.other);
}

// ---- One row.

// Boxes too thin to be drawn by themselves become columns of a pixel, in an image that is then put into the lane: tens of thousands of
// rectangles would take too long for moving smoothly.
const thin = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
let shares = new Float32Array(0);  // [column][tone]: how much of the column it fills
let columnsDrawn = 0;              // since the picture was begun

function addThin(tone, x0, x1) {
  const last = Math.min(x1, shares.length / tones.length);
  for (let column = Math.max(0, Math.floor(x0)); column < last; ++column)
    shares[column * tones.length + tone] += Math.min(x1, column + 1) - Math.max(x0, column);
}

// In each column the tones lie on each other, as high as their share of its time: mixed, they would be a colour that says nothing.
// Returns how many columns there are, and forgets them.
function drawThin(y, height) {
  const width = thin.canvas.width, high = Math.max(1, Math.round(height * view.scale)), image = thin.createImageData(width, high);
  const pixels = new Uint32Array(image.data.buffer), packed = tones.map((tone) => tone.packed), count = tones.length;
  let columns = 0;
  for (let column = 0, first = 0; column < width; ++column, first += count) {
    let sum = 0, done = 0, row = high;
    for (let k = first; k < first + count; ++k) sum += shares[k];
    if (sum === 0) continue;
    ++columns;
    const scale = Math.max(1, Math.min(1, sum) * high) / sum;
    for (let tone = 0; tone < count; ++tone) {
      if (shares[first + tone] === 0) continue;
      done += shares[first + tone];
      for (const top = high - Math.round(scale * done); row > top;) pixels[--row * width + column] = packed[tone];
    }
  }
  if (thin.canvas.height < high) thin.canvas.height = high;
  thin.putImageData(image, 0, 0);
  picture.drawImage(thin.canvas, 0, 0, width, high, 0, y, width / view.scale, high / view.scale);
  shares.fill(0);
  columnsDrawn += columns;
  return columns;
}

// Where the label has no room its stage and letter may have, or its letter.
function drawLabel(timeline, i, x0, x1, y, height) {
  if (x1 - x0 < 11 || height < 12) return;
  const letter = page.looks[timeline.look[i]].letter, stage = timeline.columns.stage[i], tone = tones[toneOf(timeline, i)];
  const texts = [labelOf(timeline, i), timeline.chunks > 1 && stage >= 0 ? stageText(timeline, i) + letter : letter, letter];
  const text = texts.find((text) => x1 - x0 >= text.length * 6.6 + 5) ?? letter;
  picture.font = '12px system-ui, sans-serif';
  picture.textAlign = 'center';
  const x = (Math.max(x0, view.left) + Math.min(x1, view.width - kRight)) / 2;
  if (tone.patterned) {
    const plate = Math.min(x1 - x0 - 3, 7 * text.length + 4);
    picture.fillStyle = tone.colour;
    picture.fillRect(x - plate / 2, y + Math.max(1, height / 2 - 8), plate, Math.min(16, height - 2));
  }
  picture.fillStyle = '#000';
  picture.fillText(text, x, y + height / 2 + 4);
}

// A wide box has an edge, so that bright ones stand out from the ground.
function drawBox(context, tone, x, y, width, height) {
  const edge = Math.max(1, Math.round(view.scale)) / view.scale, isFramed = width >= kPatterned && height > 3 * edge;
  context.fillStyle = isFramed ? tone.edge : tone.colour;
  context.fillRect(x, y, width, height);
  if (!isFramed) return;
  context.fillStyle = tone.fill;
  context.fillRect(x + edge, y + edge, width - 2 * edge, height - 2 * edge);
}

// Returns how many boxes and columns were drawn.
function drawLane(timeline, lane, y, height, labels) {
  let drawn = 0, anyThin = false;
  const wide = [];
  visitLane(timeline, lane, toTime(view.left), toTime(view.width - kRight), (i) => {
    const x0 = Math.max(view.left - 20, toX(timeline.begin[i])), x1 = Math.min(view.width + 20, toX(timeline.end[i]));
    if (x1 - x0 >= kThin) { wide.push(i, x0, x1); return; }
    addThin(toneOf(timeline, i), x0 * view.scale, Math.max(x1, x0 + 0.01) * view.scale);
    anyThin = true;
  });
  if (anyThin) drawn += drawThin(y, height);
  for (let k = 0; k < wide.length; k += 3) {
    const i = wide[k], x0 = snap(wide[k + 1]), x1 = snap(wide[k + 2]), tone = toneOf(timeline, i);
    drawBox(picture, tones[tone], x0, y, x1 - x0 - 1 / view.scale, height);  // apart from the next one
    if (labels && tone !== kOther) drawLabel(timeline, i, x0, x1, y, height);
  }
  return drawn + wide.length / 3;
}

// [x, point] where the curve changes: of the points in one column of a pixel the largest, so that no peak is lost.
function memorySteps(memory) {
  const steps = [], last = memory.time.length;
  let i = Math.max(0, firstWhere(last, (j) => memory.time[j] > view.from) - 1);
  for (; i < last && memory.time[i] <= view.to; ++i) {
    const x = Math.max(view.left, Math.floor(toX(memory.time[i])));
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
    picture.fillStyle = colours.memory[c];
    picture.beginPath();
    let top = floor;
    for (const [x, i] of steps) {
      picture.lineTo(x, top);
      picture.lineTo(x, top = snap(floor - memory.tops[c][i] * scale));
    }
    if (right > view.left) picture.lineTo(right, top);
    picture.lineTo(Math.max(view.left, right), floor);
    picture.fill();
  }
  const x = toX(memory.time[memory.peak]), y = floor - memory.total[memory.peak] * scale;
  if (x < view.left || x > view.width - kRight) return;
  picture.fillStyle = '#d55e00';
  picture.beginPath();
  picture.moveTo(x, y);
  picture.lineTo(x - 4, y - 6);
  picture.lineTo(x + 4, y - 6);
  picture.fill();
}

function drawNames(row, y) {
  const timeline = timelines[row.timeline], room = view.left - 16;
  picture.textAlign = 'left';
  if (row.device < 0) {
    picture.font = '600 13px system-ui, sans-serif';
    picture.fillStyle = colours.ink;
    picture.fillText(timeline.title + ': ' + stepText(row.timeline), 8, y + 18);
    return;
  }
  const name = (row.memory ? 'memory, ' : '') + timeline.devices[row.device] + (options.byDevice ? ', ' + timeline.title : '');
  const size = Math.min(13, Math.max(7, 0.9 * row.height));
  picture.font = size + 'px system-ui, sans-serif';
  picture.fillStyle = colours.ink;
  if (row.memory) {
    const memory = timeline.memory[row.device], middle = y + kPeak + row.memory / 2, two = row.memory >= 28;
    picture.fillText(name, 8, middle + (two ? -3 : 4), room);
    if (!two) return;
    picture.font = '11px system-ui, sans-serif';
    picture.fillStyle = colours.faint;
    picture.fillText('peak ' + amountText(memory.total[memory.peak], timeline.seconds), 8, middle + 12, room);
    return;
  }
  picture.fillText(name, 8, y + row.box / 2 + 0.36 * size, room - 40);
  picture.textAlign = 'right';
  picture.fillStyle = colours.faint;
  picture.fillText(shareText(busyShare(timeline, row.device)), view.left - 8, y + row.box / 2 + 0.36 * size);
}

function drawRow(row) {
  const timeline = timelines[row.timeline], y = toY(row);
  if (row.device < 0) return 0;
  picture.fillStyle = colours.stripe;
  picture.fillRect(view.left, row.memory ? y + kPeak : y, view.width - view.left - kRight, row.memory || row.box);
  if (row.memory) {
    drawMemory(timeline, row, y + kPeak + row.memory);
    return 0;
  }
  const lanes = timeline.lanes[row.device];
  let drawn = drawLane(timeline, lanes[kHost], y + Math.round(row.box / 4), Math.round(row.box / 2), false);
  drawn += drawLane(timeline, lanes[kCompute], y, row.box, true);
  if (row.strip) drawn += drawLane(timeline, lanes[kTransfer], y + row.box + 2, row.strip, false);
  return drawn;
}

// ---- The whole.

function tickStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * (1 - 1e-9));
}

function drawAxis() {
  const step = tickStep(view.to - view.from, Math.max(2, (view.width - view.left) / 130));
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
  const width = view.width - view.left - kRight;
  picture.fillStyle = colours.line;
  picture.fillRect(view.left, kAxis - 8, width, 3);
  picture.fillStyle = colours.faint;
  const from = Math.max(0, view.from / lastTime), to = Math.min(1, view.to / lastTime);
  picture.fillRect(view.left + from * width, kAxis - 8, Math.max(2, (to - from) * width), 3);
}

// One arrow: from the sender's row, where the transfer begins, to the receiver's boxes, where it ends.
function traceArrow(context, timeline, t, i) {
  if (timeline.columns.device[i] === timeline.columns.peer[i]) return;
  const from = rows[rowOf[t][timeline.columns.device[i]]], to = rows[rowOf[t][timeline.columns.peer[i]]], down = to.y > from.y;
  const y0 = toY(from) + (down ? from.box + 2 + from.strip / 2 : 0), y1 = toY(to) + (down ? 0 : to.box);
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
    visitLane(timeline, timeline.transfers, view.from, view.to, (i) => { if (isChosen(timeline, i)) traceArrow(picture, timeline, t, i); }));
  picture.stroke();
  picture.globalAlpha = 1;
  return true;
}

function withClip(context, draw) {
  context.save();
  context.beginPath();
  context.rect(view.left, kAxis, view.width - view.left - kRight, view.height - kAxis);
  context.clip();
  draw();
  context.restore();
}

// Onto this context. Returns how many boxes and columns were drawn, and whether the arrows were.
function drawPicture(context) {
  const shown = visibleRows(), canvas = picture;
  let drawn = 0, arrows = true;
  picture = context;
  columnsDrawn = 0;
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
  picture = canvas;
  return {drawn, arrows};
}

function draw() {
  const begin = performance.now(), {drawn, arrows} = drawPicture(picture);
  document.getElementById('arrows-hidden').hidden = arrows;
  document.getElementById('shared').hidden = columnsDrawn < kManyColumns;
  drawOverlay();
  root.dataset.drawn = drawn;
  root.dataset.milliseconds = (performance.now() - begin).toFixed(2);
}
