// SPDX-License-Identifier: Apache-2.0
// The page's data as typed arrays, and finding things in them by time.
'use strict';

const root = document.documentElement;
root.dataset.errors = '';
window.addEventListener('error', (event) => {
  root.dataset.errors += event.message + '\n';
  const failure = document.getElementById('failure');
  failure.hidden = false;
  failure.textContent = 'This page could not be drawn: ' + event.message;
});

// {looks, words, lookOfKind, transferLook, hostLook, frozenLook, updateLook, tile, shades, memory, timelines, figures}: see timeline_html.cpp.
const page = JSON.parse(document.getElementById('data').textContent);

const kCompute = 0, kTransfer = 1, kHost = 2;

// The first of 0..count-1 for which `test` holds, if it holds for all that follow; else count.
function firstWhere(count, test) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

// Activities by begin; `latest` is the last end among each and those before it, so that overlapping ones are found too.
function makeLane(timeline, numbers) {
  numbers.sort((a, b) => timeline.begin[a] - timeline.begin[b]);
  const latest = new Float64Array(numbers.length);
  let last = 0;
  for (let i = 0; i < numbers.length; ++i) latest[i] = last = Math.max(last, timeline.end[numbers[i]]);
  return {numbers: Int32Array.from(numbers), latest};
}

// Calls visit(number) for the activities of a lane that touch [from, to].
function visitLane(timeline, lane, from, to, visit) {
  for (let i = firstWhere(lane.latest.length, (j) => lane.latest[j] >= from); i < lane.numbers.length; ++i) {
    const number = lane.numbers[i];
    if (timeline.begin[number] > to) return;
    if (timeline.end[number] >= from) visit(number);
  }
}

function countLane(timeline, lane, from, to) {
  const first = firstWhere(lane.latest.length, (j) => lane.latest[j] >= from);
  return firstWhere(lane.numbers.length, (j) => timeline.begin[lane.numbers[j]] > to) - first;
}

// Amounts of a device are summed up from the first class on, so that they stack.
function makeMemory(columns) {
  const tops = [], time = Float64Array.from(columns.time);
  let below = new Float64Array(time.length);
  for (const memoryClass of page.memory) {
    const amounts = columns[memoryClass.name];
    below = below.map((amount, i) => amount + amounts[i]);
    tops.push(below);
  }
  let peak = 0;
  for (let i = 1; i < time.length; ++i) if (below[i] > below[peak]) peak = i;
  return {time, tops, total: below, peak};
}

// The part of a stage that a number stands for (part_of, penstock/schedule.h): its stage, slice and block; block -1: the slice itself.
function partOf({slices, blocks}, number) {
  const numberAt = (i) => blocks[i][0] * slices + blocks[i][1] + 1 + i;
  let before = 0, end = blocks.length;
  while (before < end) {
    const middle = (before + end) >> 1;
    if (numberAt(middle) < number) before = middle + 1;
    else end = middle;
  }
  if (before < blocks.length && numberAt(before) === number) return blocks[before];
  return [Math.floor((number - before) / slices), (number - before) % slices, -1];
}

function makeTimeline(data, number) {
  const columns = data.activities, count = columns.begin.length, figures = page.figures[number];
  const timeline = {
    title: data.title, seconds: data.seconds, makespan: data.makespan, devices: data.devices, tasks: data.tasks, columns, count, figures,
    slices: data.slices || 1, blocks: data.blocks || [], kinds: data.kinds, begin: Float64Array.from(columns.begin), end: Float64Array.from(columns.end), look: new Uint8Array(count),
    chunk: new Uint8Array(count), chunks: Math.max(1, ...figures.stages.map((stages) => stages.length)), last: data.makespan,
  };
  const numbers = data.devices.map(() => [[], [], []]), transfers = [];
  for (let i = 0; i < count; ++i) {
    const lane = columns.lane[i], kind = columns.kind[i];
    timeline.look[i] = lane === kTransfer ? page.transferLook : lane === kHost ? page.hostLook
      : columns.frozen && columns.frozen[i] ? page.frozenLook : kind < 0 ? page.updateLook : page.lookOfKind[kind];
    if (lane === kCompute) timeline.chunk[i] = Math.max(0, figures.stages[columns.device[i]].indexOf(columns.stage[i]));
    timeline.last = Math.max(timeline.last, timeline.end[i]);
    numbers[columns.device[i]][lane].push(i);
    if (lane === kTransfer) transfers.push(i);
  }
  timeline.lanes = numbers.map((device) => device.map((list) => makeLane(timeline, list)));
  timeline.transfers = makeLane(timeline, transfers);
  timeline.memory = data.memory.map((device) => device.time.length ? makeMemory(device) : null);
  for (const memory of timeline.memory) if (memory) timeline.last = Math.max(timeline.last, memory.time[memory.time.length - 1]);
  return timeline;
}

const timelines = page.timelines.map(makeTimeline);
const lastTime = Math.max(...timelines.map((timeline) => timeline.last)) || 1;
const mostMemory = Math.max(0, ...timelines.flatMap((timeline) => timeline.memory.map((memory) => memory ? memory.total[memory.peak] : 0)));
const inSeconds = timelines.every((timeline) => timeline.seconds);
root.dataset.boxes = timelines.reduce((sum, timeline) => sum + timeline.count, 0);

// ---- Texts.

function shortDecimal(value, digits = 4) {
  return String(Number(value.toPrecision(digits)));
}

function unitOf(time, seconds) {
  if (!seconds) return [1, ''];
  if (time >= 1 || time === 0) return [1, ' s'];
  if (time >= 1e-3) return [1e-3, ' ms'];
  return time >= 1e-6 ? [1e-6, ' us'] : [1e-9, ' ns'];
}

function timeText(time, seconds) {
  const [unit, suffix] = unitOf(Math.abs(time), seconds);
  return shortDecimal(time / unit, seconds ? 4 : 6) + suffix;
}

function amountText(amount, seconds) {
  if (!seconds) return shortDecimal(amount) + (amount === 1 ? ' micro-batch' : ' micro-batches');
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; amount >= 1024 && unit < 4; ++unit) amount /= 1024;
  return shortDecimal(amount) + ' ' + units[unit];
}

// The stage that an activity works for, whatever the slice; -1: none.
const stageOf = (timeline, i) => partOf(timeline, timeline.columns.stage[i])[0];

// "2", "2.1" where it works for a slice of it, or "2.1.0" for a block of that.
function stageText(timeline, i) {
  const sliced = timeline.slices > 1 && timeline.columns.microbatch[i] >= 0, [stage, slice, block] = partOf(timeline, timeline.columns.stage[i]);
  return stage + (sliced ? '.' + slice + (block >= 0 ? '.' + block : '') : '');
}

// "F3"; where devices have several stages "2F3", as in tables.
function labelOf(timeline, i) {
  const {lane, kind, device, peer, stage, microbatch, task} = timeline.columns;
  if (lane[i] === kTransfer && device[i] !== peer[i]) return device[i] + '->' + peer[i];
  if (kind[i] < 0) return task[i] >= 0 ? timeline.tasks[task[i]] : 'host';
  const chunked = timeline.chunks > 1 && stage[i] >= 0 && lane[i] === kCompute;
  return (chunked ? stageText(timeline, i) : '') + timeline.kinds[kind[i]] + (microbatch[i] >= 0 ? microbatch[i] : '');
}

// Returns what an activity works for: "forward of stage 3, slice 2, micro-batch 4"; "": nothing that the table names.
function actionOf(timeline, i) {
  const {kind, stage, microbatch} = timeline.columns;
  if (kind[i] < 0) return '';
  const sliced = timeline.slices > 1 && microbatch[i] >= 0, [, slice, block] = partOf(timeline, stage[i]);
  return page.words[timeline.kinds[kind[i]]] + (stage[i] >= 0 ? ' of stage ' + stageOf(timeline, i) : '')
    + (stage[i] >= 0 && sliced ? ', slice ' + slice + (block >= 0 ? ', block ' + block : '') : '')
    + (microbatch[i] >= 0 ? ', micro-batch ' + microbatch[i] : '');
}

const isTransfer = (timeline, i) =>
  timeline.columns.lane[i] === kTransfer && timeline.columns.device[i] !== timeline.columns.peer[i];

// In words, without the device.
function wordsOf(timeline, i) {
  const {lane, device, peer, microbatch, task} = timeline.columns, action = actionOf(timeline, i);
  const name = task[i] >= 0 ? timeline.tasks[task[i]] : '';
  if (isTransfer(timeline, i)) {
    const what = action ? ' after ' + action : microbatch[i] >= 0 ? ' of micro-batch ' + microbatch[i] : '';
    return 'transfer from ' + timeline.devices[device[i]] + ' to ' + timeline.devices[peer[i]] + what;
  }
  if (timeline.look[i] === page.frozenLook) return 'frozen layer ' + name;
  if (lane[i] === kCompute) return action || 'before or after the loop' + (name && ': ' + name);
  return (name || page.looks[timeline.look[i]].meaning) + (action && ' for ' + action);
}

// Why an activity did not begin earlier, as a name and a text: what came before it on its device, or what it waited for.
function reasonOf(timeline, i) {
  const {cause, device} = timeline.columns, c = cause[i];
  if (isTransfer(timeline, c)) return ['waited for', 'the ' + wordsOf(timeline, c)];
  if (device[c] === device[i]) return ['follows', wordsOf(timeline, c)];
  return ['waited for', wordsOf(timeline, c) + ', on ' + timeline.devices[device[c]]];
}

// Returns what the tip says of an activity: pairs of a name and a text, after a headline.
function describe(timeline, i) {
  const {device, bytes, cause} = timeline.columns, seconds = timeline.seconds, out = [];
  const add = (name, text) => out.push([name, text]);
  if (!isTransfer(timeline, i)) add('on', timeline.devices[device[i]]);
  add('starts', timeText(timeline.begin[i], seconds));
  add('takes', timeText(timeline.end[i] - timeline.begin[i], seconds));
  if (bytes[i] > 0) add('size', amountText(bytes[i], true));
  if (cause[i] >= 0) add(...reasonOf(timeline, i));
  return [wordsOf(timeline, i), out];
}

function describeMemory(timeline, device, time) {
  const memory = timeline.memory[device], seconds = timeline.seconds;
  const i = firstWhere(memory.time.length, (j) => memory.time[j] > time) - 1;
  if (i < 0) return null;
  const out = page.memory.map((memoryClass, c) => [memoryClass.name, memory.tops[c][i] - (c ? memory.tops[c - 1][i] : 0)])
    .filter(([, amount]) => amount > 0).map(([name, amount]) => [name, amountText(amount, seconds)]).reverse();
  out.push(['in all', amountText(memory.total[i], seconds)], ['peak', amountText(memory.total[memory.peak], seconds)]);
  return ['memory of ' + timeline.devices[device] + ' at ' + timeText(time, seconds), out];
}

// The activity and what it waited for, what that waited for, and so on: the chain that led to its begin.
function chainOf(timeline, i) {
  const chain = [];
  for (; i >= 0 && chain.length < timeline.count; i = timeline.columns.cause[i]) chain.push(i);
  return chain;
}

// ---- Filters.

const chosen = {stage: -1, microbatch: -1};  // -1: all

// Whether the filters leave an activity in colour.
function isChosen(timeline, i) {
  const {microbatch} = timeline.columns;
  return (chosen.stage < 0 || stageOf(timeline, i) === chosen.stage) && (chosen.microbatch < 0 || microbatch[i] === chosen.microbatch);
}

// The numbers from 0 that a column of any timeline has, in order.
function numbersIn(name) {
  const found = new Set();
  for (const timeline of timelines) {
    for (const number of timeline.columns[name]) if (number >= 0) found.add(name === 'stage' ? partOf(timeline, number)[0] : number);
  }
  return [...found].sort((a, b) => a - b);
}
