// SPDX-License-Identifier: Apache-2.0
// The numbers and words of a page beside the picture: the figures above it, the legend, and the devices' table below.
'use strict';

const busyShare = (timeline, device) => timeline.makespan > 0 ? timeline.figures.busy[device] / timeline.makespan : 0;

// The curve's, or what a plan says.
function peakOf(timeline, device) {
  const memory = timeline.memory[device];
  return memory ? memory.total[memory.peak] : timeline.figures.peaks?.[device] ?? 0;
}

function shareText(share) {
  return (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + ' %';
}

// Returns how much longer this is than the first timeline: beyond twice as long a percentage reads badly.
function ratioText(ratio) {
  if (ratio > 2) return shortDecimal(ratio, 3) + ' times as long';
  return (ratio < 1 ? '\u2212' : '+') + shortDecimal(Math.abs(ratio - 1) * 100, 3) + ' %';
}

function stepText(t) {
  const {makespan, seconds} = timelines[t], first = timelines[0].makespan;
  return timeText(makespan, seconds) + (t && first > 0 ? ' (' + ratioText(makespan / first) + ')' : '');
}

function element(name, text, ...children) {
  const out = document.createElement(name);
  if (text) out.textContent = text;
  out.append(...children);
  return out;
}

// ---- The figures: [name, text, what it means].

function pathText(timeline) {
  const path = timeline.figures.path, whole = timeline.makespan || 1;
  return [['compute', 'computing'], ['transfer', 'transfers'], ['host', 'host work'], ['waiting', 'unknown']]
    .filter(([part]) => path[part] / whole >= 0.0005).map(([part, text]) => shareText(path[part] / whole) + ' ' + text).join(', ');
}

function figuresOf(timeline, t) {
  const shares = timeline.devices.map((_, device) => shareText(busyShare(timeline, device)));
  const busy = timeline.devices.map((_, device) => busyShare(timeline, device));
  const out = [
    ['step time', stepText(t), ''],
    ['bubble', shareText(timeline.figures.bubble), 'the share of all devices\u2019 time in which they compute nothing'],
  ];
  if (busy.length) {
    const least = busy.indexOf(Math.min(...busy)), most = busy.indexOf(Math.max(...busy));
    const text = busy.length <= 4 || shares[least] === shares[most] ? [...new Set(shares)].join(', ') : shares[least] + ' to ' + shares[most];
    out.push([busy.length <= 4 ? 'devices compute' : busy.length + ' devices compute', text, 'the share of the step in which each computes']);
  }
  out.push(['critical path', pathText(timeline), 'what the step\u2019s length is made of, from its end back through what each activity waited for']);
  const peaks = timeline.devices.map((_, device) => peakOf(timeline, device)), highest = peaks.indexOf(Math.max(...peaks));
  if (peaks[highest] > 0)
    out.push(['highest memory peak', amountText(peaks[highest], timeline.seconds) + ', ' + timeline.devices[highest], 'what is in use at once; places in memory may take more']);
  return out;
}

function makeFigures() {
  const list = document.getElementById('figures');
  timelines.forEach((timeline, t) => {
    const row = element('dl');
    if (timelines.length > 1) row.append(element('div', '', element('dt', t ? 'beside it' : 'timeline'), element('dd', timeline.title)));
    for (const [name, text, meaning] of figuresOf(timeline, t)) {
      const entry = element('div', '', element('dt', name), element('dd', text || '\u2013'));
      entry.title = meaning;
      entry.dataset.figure = name;
      row.append(entry);
    }
    list.append(row);
  });
}

// ---- The devices' table.

const idleParts = [
  ['warm_up', 'idle before its first work'], ['dependency', 'waits for others\u2019 work'], ['communication', 'for transfers'],
  ['host', 'for host work'], ['drain', 'idle after its last'],
];

function makeDevices() {
  const place = document.getElementById('devices');
  for (const timeline of timelines) {
    const head = element('tr', '', ...[timelines.length > 1 ? timeline.title : 'device', 'stages', 'computes', ...idleParts.map(([, text]) => text),
      'memory peak'].map((text) => element('th', text)));
    const table = element('table', '', element('thead', '', head)), body = element('tbody');
    timeline.devices.forEach((name, device) => {
      const share = busyShare(timeline, device), idle = timeline.figures.idle[device], memory = timeline.memory[device];
      const stages = new Set(timeline.figures.stages[device].map((stage) => partOf(timeline, stage)[0]));
      const cells = [[...stages].join(', '), shareText(share),
        ...idleParts.map(([part]) => shareText(timeline.makespan > 0 ? idle[part] / timeline.makespan : 0)),
        peakOf(timeline, device) > 0 ? amountText(peakOf(timeline, device), timeline.seconds) : '\u2013'].map((text) => element('td', text));
      cells[1].style.setProperty('--share', 100 * Math.min(1, share) + '%');
      cells[1].className = 'bar';
      body.append(element('tr', '', element('th', name), ...cells));
    });
    table.append(body);
    place.append(element('div', '', table));
  }
  place.open = timelines.length === 1 && timelines[0].devices.length <= 4;
}

// ---- The legend.

function addToLegend(list, samples, text) {
  const sample = document.createElement('canvas'), context = sample.getContext('2d'), each = samples.length > 1 ? 14 : 22;
  sample.width = each * samples.length;
  sample.height = 15;
  sample.style.width = sample.width + 'px';
  samples.forEach((tone, i) => drawBox(context, tone, i * each, 0, each, 15));
  document.getElementById(list).append(element('span', '', sample, text));
}

const kMostSamples = 4;  // of the shades of one kind

function makeLegend() {
  for (const list of ['kinds', 'classes']) document.getElementById(list).replaceChildren();
  const chunks = page.shades.length, samples = Math.min(chunks, kMostSamples);
  page.looks.forEach((entry, look) => {
    const there = timelines.filter((timeline) => timeline.look.includes(look));
    if (!there.length) return;
    const shaded = there.some((timeline) => timeline.chunk.some((chunk, i) => chunk && timeline.look[i] === look));
    const drawn = Array.from({length: shaded ? samples : 1},
      (_, k) => tones[look * chunks + (samples > 1 ? Math.round(k * (chunks - 1) / (samples - 1)) : 0)]);
    addToLegend('kinds', drawn, entry.letter + ' ' + entry.meaning);
  });
  const sliced = timelines.some((timeline) => timeline.slices > 1);
  if (chunks > 1)
    document.getElementById('kinds').append(element('span', sliced
      ? '2.1F4: forward of stage 2, slice 1, micro-batch 4; the later a slice of its device, the paler'
      : '2F4: forward of stage 2, micro-batch 4; the later a stage of its device, the paler'));
  page.memory.forEach((memoryClass, c) => {
    const there = (memory) => memory && memory.tops[c].some((top, i) => top > (c ? memory.tops[c - 1][i] : 0));
    if (!timelines.some((timeline) => timeline.memory.some(there))) return;
    addToLegend('classes', [makeTone(colours.memory[c], '', colours.memory[c])], 'memory: ' + memoryClass.name);
  });
}
