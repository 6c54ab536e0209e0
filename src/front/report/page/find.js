// SPDX-License-Identifier: Apache-2.0
// Finding boxes by what they say.
'use strict';

const found = {hits: [], at: -1};  // hits: [timeline, activity] by begin; at: the one stepped to

// A search looks in this text of an activity: its label, also without the stage, and its words. Host work has no label that one sees.
function findable(timeline, i) {
  const {kind, microbatch, device, lane} = timeline.columns;
  const short = lane[i] === kCompute && kind[i] >= 0 && microbatch[i] >= 0 ? timeline.kinds[kind[i]] + microbatch[i] : '';
  return [lane[i] === kHost ? '' : labelOf(timeline, i), short, wordsOf(timeline, i), timeline.devices[device[i]]].join('\n');
}

// A text is found at the beginning of a word, and a number only as a whole: "F3" is not in "F30", "trans" is in "transfer".
function find(text) {
  Object.assign(found, {hits: [], at: -1});
  const sought = text.trim().replace(/\s+/g, ' ');
  if (sought) {
    const pattern = new RegExp('(?<![\\w.])' + sought.replace(/[.*+?^${}()|[\]\\]/g, '\\$&') + (/\d$/.test(sought) ? '(?![\\d.])' : ''), 'i');
    timelines.forEach((timeline, t) => {
      for (let i = 0; i < timeline.count; ++i) if (pattern.test(findable(timeline, i))) found.hits.push([t, i]);
    });
    found.hits.sort(([t, i], [u, k]) => timelines[t].begin[i] - timelines[u].begin[k]);
  }
  sayFound(sought !== '');
  drawOverlay();
}

function sayFound(isSought) {
  const count = found.hits.length, box = document.getElementById('found');
  box.textContent = !isSought ? '' : found.at < 0 ? count + ' found' : found.at + 1 + ' of ' + count;
}

// To the next hit (step: 1) or the one before it (-1), around the ends.
function stepFound(step) {
  const count = found.hits.length;
  if (!count) return;
  found.at = found.at < 0 ? (step > 0 ? 0 : count - 1) : (found.at + step + count) % count;
  sayFound(true);
  selectByKey(...found.hits[found.at]);
}

const kMostMarks = 4000;  // outlines at once

function drawFound() {
  let drawn = 0;
  for (const [t, i] of found.hits) {
    const timeline = timelines[t];
    if (timeline.end[i] < view.from || timeline.begin[i] > view.to) continue;
    if (++drawn > kMostMarks) return;
    outline(timeline, t, i, colours.alarm, 2);
  }
}

function bindFind() {
  const input = document.getElementById('find');
  input.addEventListener('input', () => find(input.value));
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') stepFound(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') { input.value = ''; find(''); input.blur(); }
  });
}
