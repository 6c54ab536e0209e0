// SPDX-License-Identifier: Apache-2.0
// The picture as SVG and PNG, the activities as JSON and CSV: files that the browser makes by itself.
'use strict';

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[c]);
const rounded = (value) => Number(value.toFixed(2));

// SvgContext has the methods of a canvas that draw.js calls, and writes SVG. A pattern becomes its colour.
class SvgContext {
  constructor(canvas) {
    Object.assign(this, {canvas, parts: [], path: '', area: '', groups: [0], clips: 0, globalAlpha: 1, lineWidth: 1, font: '', textAlign: 'left'});
  }
  colourOf(style) { return style.colour || style; }
  fillRect(x, y, width, height) {
    this.parts.push(`<rect x="${rounded(x)}" y="${rounded(y)}" `
      + `width="${rounded(Math.max(0, width))}" height="${rounded(Math.max(0, height))}" fill="${this.colourOf(this.fillStyle)}"/>`);
  }
  fillText(text, x, y, room = Infinity) {
    const measured = this.canvas.getContext('2d');
    measured.font = this.font;
    const squeezed = measured.measureText(text).width > room ? ` textLength="${rounded(room)}" lengthAdjust="spacingAndGlyphs"` : '';
    const anchor = {left: 'start', center: 'middle', right: 'end'}[this.textAlign];
    this.parts.push(`<text x="${rounded(x)}" y="${rounded(y)}" text-anchor="${anchor}"${squeezed} `
      + `style="font: ${escaped(this.font)}" fill="${this.fillStyle}">${escaped(text)}</text>`);
  }
  beginPath() { this.path = ''; }
  moveTo(x, y) { this.path += `M${rounded(x)} ${rounded(y)}`; }
  lineTo(x, y) { this.path += `${this.path ? 'L' : 'M'}${rounded(x)} ${rounded(y)}`; }
  fill() { this.parts.push(`<path fill="${this.colourOf(this.fillStyle)}" d="${this.path}"/>`); }
  stroke() {
    this.parts.push(`<path fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" `
      + `stroke-opacity="${this.globalAlpha}" d="${this.path}"/>`);
  }
  rect(x, y, width, height) { this.area = `<rect x="${x}" y="${y}" width="${Math.max(0, width)}" height="${Math.max(0, height)}"/>`; }
  save() { this.groups.push(0); }
  clip() {
    ++this.groups[this.groups.length - 1];
    this.parts.push(`<clipPath id="clip${++this.clips}">${this.area}</clipPath><g clip-path="url(#clip${this.clips})">`);
  }
  restore() { this.parts.push('</g>'.repeat(this.groups.pop())); }
  drawImage(source, sx, sy, sw, sh, x, y, width, height) {
    const part = document.createElement('canvas');
    [part.width, part.height] = [sw, sh];
    part.getContext('2d').drawImage(source, sx, sy, sw, sh, 0, 0, sw, sh);
    this.parts.push(`<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" href="${part.toDataURL()}"/>`);
  }
}

// The picture as it is seen.
function svgText() {
  const context = new SvgContext(picture.canvas);
  drawPicture(context);
  const space = new DOMParser().parseFromString('<svg></svg>', 'text/html').querySelector('svg').namespaceURI;  // no address in the page
  return `<svg xmlns="${space}" role="img" width="${view.width}" height="${view.height}" viewBox="0 0 ${view.width} ${view.height}">\n`
    + `<title>${escaped(document.title)}</title>\n${context.parts.join('\n')}\n</svg>\n`;
}

// One row for each activity of all timelines. Times are in the timelines' unit: seconds, or that of a table.
function activityRows() {
  return timelines.flatMap((timeline) => Array.from({length: timeline.count}, (_, i) => {
    const {device, peer, lane, stage, microbatch, bytes} = timeline.columns, to = isTransfer(timeline, i);
    return {
      timeline: timeline.title, device: timeline.devices[device[i]], to: to ? timeline.devices[peer[i]] : '',
      lane: ['compute', 'transfer', 'host'][lane[i]], label: labelOf(timeline, i), what: wordsOf(timeline, i),
      stage: stage[i] < 0 ? '' : stageOf(timeline, i), microbatch: microbatch[i] < 0 ? '' : microbatch[i],
      begin: timeline.begin[i], end: timeline.end[i], bytes: bytes[i],
    };
  }));
}

const kCells = ['timeline', 'device', 'to', 'lane', 'label', 'what', 'stage', 'microbatch', 'begin', 'end', 'bytes'];

function csvText() {
  const cell = (value) => /[",\n]/.test(value) ? '"' + String(value).replaceAll('"', '""') + '"' : String(value);
  return [kCells, ...activityRows().map((row) => kCells.map((name) => row[name]))].map((row) => row.map(cell).join(',')).join('\n') + '\n';
}

const jsonText = () => JSON.stringify(activityRows(), null, 1) + '\n';

function save(extension, blob) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = (document.title.replace(/[^\w.-]+/g, '_').slice(0, 80) || 'timeline') + '.' + extension;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function bindExport() {
  const texts = {svg: [svgText, 'image/svg+xml'], json: [jsonText, 'application/json'], csv: [csvText, 'text/csv']};
  for (const button of document.querySelectorAll('#export button')) {
    const extension = button.dataset.as;
    button.addEventListener('click', () => {
      if (extension === 'png') picture.canvas.toBlob((blob) => save('png', blob));
      else save(extension, new Blob([texts[extension][0]()], {type: texts[extension][1]}));
    });
  }
}
