// src/render/page_script.cpp
// The script of the page that `keyhole show --html` writes. It reads DATA (see html.cpp): bitmaps
// are the truth about which pairs attend; the expression tree, evaluated here, says why. A test in
// headless Chromium compares the two on every pair of every catalog example, and of every head.
#include "render/html.h"

namespace keyhole {

// The definitions, one function a leaf: (q, k, arguments) -> [holds, the sentence with numbers in
// it].
const char* const kPageLeaves = R"js(
const div = (a, b) => Math.floor(a / b);
const mod = (a, b) => a - b * div(a, b);
const sign = (holds, yes, no) => holds ? yes : no;
const documentOf = (p, lengths) => {
  if (p < 0) return -1;
  for (let d = 0, end = 0; d < lengths.length; ++d) if (p < (end += lengths[d])) return d;
  return -1;
};
const named = p => p < 0 ? 'in none' : 'in document ' + p;
// The window along one axis, cut at the borders or shifted inward, and both as a sentence.
const windowAt = (at, size, radius, shifts) => {
  if (!shifts) return [Math.max(0, at - radius), Math.min(size - 1, at + radius)];
  const width = Math.min(size, 2 * radius + 1), begin = Math.min(Math.max(at - radius, 0), size - width);
  return [begin, begin + width - 1];
};
const inBox = (q, k, sizes, radii, shifts) => {
  const points = sizes.reduce((a, b) => a * b), words = [];
  if (q < 0 || q >= points || k < 0 || k >= points) return [false, `outside the ${sizes.join(' x ')} points`];
  let holds = true, step = points;
  const names = ['plane', 'row', 'column'].slice(-sizes.length);
  sizes.forEach((size, axis) => {
    step /= size;
    const at = div(k, step) % size, [first, last] = windowAt(div(q, step) % size, size, radii[axis], shifts);
    const isIn = first <= at && at <= last;
    holds = holds && isIn;
    words.push(`${names[axis]} ${at} ${isIn ? '' : 'not '}in ${first} to ${last}`);
  });
  return [holds, words.join(', ')];
};
const LEAVES = {
  dense: () => [true, 'always'],
  causal: (q, k) => [k <= q, `k <= q: ${k} ${sign(k <= q, '<=', '>')} ${q}`],
  window: (q, k, [left, right = left]) => {
    const d = k - q, holds = -left <= d && d <= right;
    return [holds, `k - q = ${d}, ${holds ? '' : 'not '}in [${-left}, ${right}]`];
  },
  sinks: (q, k, [n]) => [k < n, `k < ${n}: ${k} ${sign(k < n, '<', '>=')} ${n}`],
  blocks: (q, k, [s]) => {
    const a = div(q, s), b = div(k, s);
    return [a === b, `q / ${s} = ${a}, k / ${s} = ${b}`];
  },
  bigbird: (q, k, [s, w]) => {
    const r = (w - 1) / 2, d = Math.abs(div(q, s) - div(k, s));
    return [d <= r, `|q / ${s} - k / ${s}| = ${d} ${sign(d <= r, '<=', '>')} ${r}`];
  },
  prefix: (q, k, [n]) => [k <= q || k < n, k <= q ? `k <= q: ${k} <= ${q}` : `k ${sign(k < n, '<', '>=')} ${n}`],
  global: (q, k, [n]) => [q < n || k < n,
    q < n ? `q < ${n}: ${q} < ${n}` : k < n ? `k < ${n}: ${k} < ${n}` : `q = ${q} and k = ${k}, both >= ${n}`],
  global_at: (q, k, list) => {
    const a = list.includes(q), b = list.includes(k);
    return [a || b, a ? `q = ${q} is one of them` : b ? `k = ${k} is one of them` : `neither ${q} nor ${k} is one of them`];
  },
  documents: (q, k, list) => {
    const a = documentOf(q, list), b = documentOf(k, list), holds = a >= 0 && a === b;
    return [holds, holds ? `both in document ${a}` : `q ${named(a)}, k ${named(b)}`];
  },
  tree: (q, k, parents) => {
    if (q < 0 || q >= parents.length) return [false, `q = ${q} is not in the tree`];
    const path = [];
    for (let node = q; node >= 0; node = parents[node]) {
      path.push(node);
      if (node === k) return [true, `k is on the way to the root: ${path.join(' > ')}`];
    }
    return [false, `not on the way to the root: ${path.join(' > ')}`];
  },
  dilated: (q, k, [s, c = Infinity]) => {
    const m = mod(q - k, s), d = Math.abs(q - k), near = d < s * c;
    return [m === 0 && near, m !== 0 ? `(q - k) % ${s} = ${m}` : near ? `(q - k) % ${s} = 0` : `|q - k| = ${d} >= ${s * c}`];
  },
  strided: (q, k, [s]) => {
    const d = q - k;
    return [d >= 0 && (d < s || d % s === 0),
      d < 0 ? `k > q: ${k} > ${q}` : d < s ? `q - k = ${d} < ${s}` : `(q - k) % ${s} = ${d % s}`];
  },
  fixed: (q, k, [s, c]) => {
    const own = div(q, s) === div(k, s), column = mod(k, s) >= s - c;
    return [k <= q && (own || column), k > q ? `k > q: ${k} > ${q}`
      : own ? `q / ${s} = k / ${s} = ${div(q, s)}` : `k % ${s} = ${mod(k, s)} ${sign(column, '>=', '<')} ${s - c}`];
  },
  exponential: (q, k) => {
    const d = Math.abs(q - k), holds = d === 0 || 2 ** Math.round(Math.log2(d)) === d;
    return [holds, d === 0 ? 'q = k' : `|q - k| = ${d} is ${holds ? '' : 'not '}a power of 2`];
  },
  grid: (q, k, [h, w, rh, rw]) => {
    const inside = p => p >= 0 && p < h * w;
    if (!inside(q) || !inside(k)) return [false, `outside the ${h} x ${w} grid`];
    const rows = Math.abs(div(q, w) - div(k, w)), cols = Math.abs(mod(q, w) - mod(k, w));
    return [rows <= rh && cols <= rw, `${rows} row${rows === 1 ? '' : 's'} and ${cols} column${cols === 1 ? '' : 's'} apart`];
  },
  neighborhood: (q, k, [h, w, rh, rw]) => inBox(q, k, [h, w], [rh, rw], true),
  volume: (q, k, [d, h, w, rd, rh, rw]) => inBox(q, k, [d, h, w], [rd, rh, rw], false),
  volume_neighborhood: (q, k, [d, h, w, rd, rh, rw]) => inBox(q, k, [d, h, w], [rd, rh, rw], true),
};
)js";

// Bits, evaluation and counting: no drawing, so that a test can run it alone.
const char* const kPageModel = R"js(
const unpack = text => {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
};
// One view is one head of one batch entry; DATA.tree and DATA.pairs are those of the view in use.
let ANY, ALL, PARTS;
const bit = (bits, row, col) => { const at = row * DATA.cols + col; return bits[at >> 3] >> (at & 7) & 1; };
function prepare(node) {
  if (node.bits) node.bitmap = unpack(node.bits);
  node.args = (node.args || []).map(a => a === 'inf' ? Infinity : a === '-inf' ? -Infinity : a);
  (node.children || []).forEach(prepare);
}
const tileCache = new Map();
function useView(view) {
  if (!view.bits) {
    prepare(view.tree);
    const any = unpack(view.any);
    view.bits = {any, all: DATA.cell > 1 ? unpack(view.all) : any, parts: view.parts.map(part => unpack(part.any))};
  }
  ({any: ANY, all: ALL, parts: PARTS} = view.bits);
  DATA.tree = view.tree, DATA.pairs = view.pairs, DATA.parts = view.parts;
  tileCache.clear();
}
useView(DATA.views[0]);
// The first part that has a pair in the cell; -1 where none attends.
const partOf = (row, col) => bit(ANY, row, col) ? PARTS.findIndex(bits => bit(bits, row, col)) : -1;

// {holds, node, words, children}; holds is null where neither a definition nor a bitmap is at hand.
function evaluate(node, query, key, q = query + DATA.offset, k = key) {
  const [q_in, k_in] = node.kind === 'at' ? [node.q[query], node.k[key]] : [q, k];
  const children = (node.children || []).map(child => evaluate(child, query, key, q_in, k_in));
  const of = children.map(child => child.holds);
  const unknown = of.includes(null);
  switch (node.kind) {
    case 'and': return {node, children, words: 'all of', holds: of.includes(false) ? false : unknown ? null : true};
    case 'or': return {node, children, words: 'any of', holds: of.includes(true) ? true : unknown ? null : false};
    case 'not': return {node, children, words: 'not', holds: unknown ? null : !of[0]};
    case 'same': return {node, children, words: '', holds: of[0]};
    case 'at': return {node, children, words: `query at position ${q_in}, key at ${k_in}`, holds: of[0]};
  }
  if (LEAVES[node.name]) {
    const [holds, words] = LEAVES[node.name](q, k, node.args);
    return {node, children, words, holds};
  }
  if (node.bitmap) {
    const holds = bit(node.bitmap, query, key) === 1;
    return {node, children, holds, words: `${holds ? 'holds' : 'does not hold'}: looked up`};
  }
  return {node, children, holds: null, words: 'not kept at this scale'};
}
const attends = (query, key) => bit(ANY, div(query, DATA.cell), div(key, DATA.cell)) === 1;
const cellState = (row, col) => bit(ALL, row, col) ? 'full' : bit(ANY, row, col) ? 'partial' : 'absent';

// How tiles of `size` pairs a side fall: state per tile and the three sums.
function tiles(size) {
  if (tileCache.has(size)) return tileCache.get(size);
  const step = size / DATA.cell, rows = Math.ceil(DATA.rows / step), cols = Math.ceil(DATA.cols / step);
  const any = new Int32Array(rows * cols), all = new Int32Array(rows * cols), area = new Int32Array(rows * cols);
  for (let r = 0; r < DATA.rows; ++r) {
    const base = div(r, step) * cols;
    for (let c = 0; c < DATA.cols; ++c) {
      const t = base + div(c, step);
      any[t] += bit(ANY, r, c), all[t] += bit(ALL, r, c), ++area[t];
    }
  }
  const state = new Uint8Array(rows * cols), sums = {absent: 0, partial: 0, full: 0};
  for (let t = 0; t < state.length; ++t) {
    state[t] = any[t] === 0 ? 0 : all[t] === area[t] ? 2 : 1;
    ++sums[['absent', 'partial', 'full'][state[t]]];
  }
  const result = {size, rows, cols, state, sums};
  tileCache.set(size, result);
  return result;
}
// The keys that a query sees, as text: "0, 3–5".
function keysOf(query, most = 14) {
  const row = div(query, DATA.cell), ranges = [];
  let count = 0;
  for (let c = 0; c < DATA.cols; ++c) {
    if (!bit(ANY, row, c)) continue;
    ++count;
    const last = ranges[ranges.length - 1];
    if (last && last[1] === c - 1) last[1] = c; else ranges.push([c, c]);
  }
  const text = ranges.slice(0, most).map(([a, b]) => a === b ? `${a}` : `${a}–${b}`).join(', ');
  return {count, text: text + (ranges.length > most ? `, … ${ranges.length - most} more` : '')};
}
)js";

const char* const kPageScript = R"js(
const $ = id => document.getElementById(id);
const canvas = $('canvas'), context = canvas.getContext('2d');
const MARGIN = 40;
let scale = 1, left = 0, top_ = 0, width = 0, height = 0, colours = {}, hovered = null, pinned = null, tileSize = 0, isFitted = true;
const image = document.createElement('canvas');

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours.parts = [0, 1, 2, 3, 4, 5].map(i => style.getPropertyValue('--part' + i).trim());
  for (const name of ['card', 'ink', 'soft', 'line', 'grid', 'pair', 'pale', 'none', 'full', 'partial', 'cross'])
    colours[name] = style.getPropertyValue('--' + name).trim();
}
const isByPart = () => PARTS.length > 0 && $('ink').value === 'parts';
const inkOf = part => DATA.parts[part].ink ?? part;
function drawLegend() {
  const item = (style, text) => {
    const made = element('span', ''), swatch = element('i', 'key');
    Object.assign(swatch.style, style), made.append(swatch, text);
    return made;
  };
  const scaled = DATA.cell > 1;
  const items = isByPart()
    ? DATA.parts.map((part, i) => item({background: `var(--part${inkOf(i)})`, borderColor: `var(--part${inkOf(i)})`}, part.text))
    : [item({background: 'var(--pair)', borderColor: 'var(--pair)'}, scaled ? 'every pair of the cell attends' : 'attends')];
  if (scaled && isByPart()) items.push(element('span', '', 'pale: only some pairs of the cell attend'));
  if (scaled && !isByPart()) items.push(item({background: 'var(--pale)', borderColor: 'var(--pale)'}, 'some do'));
  items.push(item({background: 'var(--none)'}, scaled ? 'none' : 'does not'));
  if (isByPart() && DATA.parts.length > 1 && !DATA.weights) items.push(element('span', '', 'where several allow a pair, the first of them'));
  if (DATA.left_out) items.push(element('span', '', `${DATA.left_out} heads are not on this page: keyhole show --head and --at-batch draw them`));
  $('legend').replaceChildren(...items);
}
function paintImage() {
  image.width = Math.max(1, DATA.cols), image.height = Math.max(1, DATA.rows);
  const pen = image.getContext('2d'), pixels = pen.createImageData(image.width, image.height);
  const rgb = hex => [1, 3, 5].map(i => parseInt((hex.length === 4 ? '#' + [...hex.slice(1)].map(h => h + h).join('') : hex).slice(i, i + 2), 16));
  const [pair, pale, none] = [rgb(colours.pair), rgb(colours.pale), rgb(colours.none)];
  const full = colours.parts.map(rgb), some = full.map(part => part.map((value, i) => Math.round(.35 * value + .65 * none[i])));
  for (let r = 0, at = 0; r < DATA.rows; ++r) {
    for (let c = 0; c < DATA.cols; ++c, at += 4) {
      const part = isByPart() ? partOf(r, c) : -1;
      const colour = part >= 0 ? (bit(ALL, r, c) ? full : some)[inkOf(part)] : bit(ALL, r, c) ? pair : bit(ANY, r, c) ? pale : none;
      pixels.data[at] = colour[0], pixels.data[at + 1] = colour[1], pixels.data[at + 2] = colour[2], pixels.data[at + 3] = 255;
    }
  }
  pen.putImageData(pixels, 0, 0);
}
const toX = col => MARGIN + (col - left) * scale, toY = row => MARGIN + (row - top_) * scale;
function tickStep() {  // 1, 2, 5, 10, ... cells: at least 46 pixels apart
  let step = 1;
  for (let i = 0; step * scale < 46; ++i) step *= i % 3 === 1 ? 2.5 : 2;
  return step;
}
function draw() {
  const ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.card;
  context.fillRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(MARGIN - 1, MARGIN - 1, width - MARGIN + 1, height - MARGIN + 1);
  context.clip();
  context.imageSmoothingEnabled = scale < 1;
  context.imageSmoothingQuality = 'high';
  const x0 = toX(0), y0 = toY(0), x1 = toX(DATA.cols), y1 = toY(DATA.rows);
  if (DATA.rows && DATA.cols) context.drawImage(image, x0, y0, x1 - x0, y1 - y0);
  const c0 = Math.max(0, Math.floor(left)), c1 = Math.min(DATA.cols, Math.ceil(left + (width - MARGIN) / scale));
  const r0 = Math.max(0, Math.floor(top_)), r1 = Math.min(DATA.rows, Math.ceil(top_ + (height - MARGIN) / scale));
  if (scale >= 7) {
    context.strokeStyle = colours.grid, context.lineWidth = 1, context.beginPath();
    for (let c = c0; c <= c1; ++c) context.moveTo(Math.round(toX(c)) + .5, Math.max(y0, MARGIN)), context.lineTo(Math.round(toX(c)) + .5, Math.min(y1, height));
    for (let r = r0; r <= r1; ++r) context.moveTo(Math.max(x0, MARGIN), Math.round(toY(r)) + .5), context.lineTo(Math.min(x1, width), Math.round(toY(r)) + .5);
    context.stroke();
  }
  if (tileSize) drawTiles(c0, c1, r0, r1);
  context.strokeStyle = colours.soft, context.lineWidth = 1;
  context.strokeRect(Math.round(x0) - .5, Math.round(y0) - .5, Math.round(x1 - x0) + 1, Math.round(y1 - y0) + 1);
  const pair = hovered || pinned;
  if (pair) {
    context.fillStyle = colours.cross;
    context.fillRect(x0, toY(pair.row), x1 - x0, Math.max(scale, 1));
    context.fillRect(toX(pair.col), y0, Math.max(scale, 1), y1 - y0);
  }
  for (const mark of [pinned, hovered]) if (mark) {
    context.strokeStyle = colours.ink, context.lineWidth = mark === pinned ? 2.5 : 1.5;
    context.strokeRect(toX(mark.col) - .5, toY(mark.row) - .5, Math.max(scale, 3) + 1, Math.max(scale, 3) + 1);
  }
  context.restore();
  drawRulers(c0, c1, r0, r1, pair);
}
function drawTiles(c0, c1, r0, r1) {
  const found = tiles(tileSize), step = tileSize / DATA.cell;
  const inset = Math.min(1.5, step * scale / 6);
  for (let r = div(r0, step); r < Math.min(found.rows, Math.ceil(r1 / step)); ++r) {
    for (let c = div(c0, step); c < Math.min(found.cols, Math.ceil(c1 / step)); ++c) {
      const state = found.state[r * found.cols + c];
      const x = toX(c * step), y = toY(r * step);
      const w = toX(Math.min((c + 1) * step, DATA.cols)) - x, h = toY(Math.min((r + 1) * step, DATA.rows)) - y;
      context.strokeStyle = state === 2 ? colours.full : state === 1 ? colours.partial : colours.line;
      context.fillStyle = context.strokeStyle;
      if (state) { context.globalAlpha = .2; context.fillRect(x, y, w, h); context.globalAlpha = 1; }
      if (step * scale < (state ? 5 : 14)) continue;  // finer outlines would be noise
      context.lineWidth = state ? 1.6 : 1;
      context.setLineDash(state ? [] : [3, 3]);
      context.strokeRect(x + inset, y + inset, Math.max(0, w - 2 * inset), Math.max(0, h - 2 * inset));
    }
  }
  context.setLineDash([]);
}
function drawRulers(c0, c1, r0, r1, pair) {
  context.fillStyle = colours.card;
  context.fillRect(0, 0, width, MARGIN - 1), context.fillRect(0, 0, MARGIN - 1, height);
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  const step = tickStep(), label = cell => String(cell * DATA.cell);
  const place = (value, colour, bold) => { context.fillStyle = colour; context.font = (bold ? '600 ' : '') + '11px system-ui, "DejaVu Sans", sans-serif'; return value; };
  context.textAlign = 'center';
  for (let c = Math.ceil(c0 / step) * step; c < c1; c += step) {
    const x = toX(c) + Math.min(scale, 46) / 2;
    if (x < MARGIN - 2 || (pair && Math.abs(x - toX(pair.col) - scale / 2) < 30)) continue;
    context.fillText(place(label(c), colours.soft), x, 28);
  }
  if (pair && toX(pair.col) >= MARGIN - scale) context.fillText(place(label(pair.col), colours.ink, true), toX(pair.col) + scale / 2, 28);
  context.textAlign = 'right';
  for (let r = Math.ceil(r0 / step) * step; r < r1; r += step) {
    const y = toY(r) + Math.min(scale, 46) / 2;
    if (y < MARGIN - 2 || (pair && Math.abs(y - toY(pair.row) - scale / 2) < 14)) continue;
    context.fillText(place(label(r), colours.soft), MARGIN - 7, y);
  }
  if (pair && toY(pair.row) >= MARGIN - scale) context.fillText(place(label(pair.row), colours.ink, true), MARGIN - 7, toY(pair.row) + scale / 2);
  context.textAlign = 'left';
  context.fillText(place('queries ↓', colours.soft), 4, 12);
  context.fillText('keys →', 70, 12);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
function whyItem(result) {
  const item = element('li'), row = element('div', 'row');
  const known = result.holds !== null;
  row.append(element('span', 'mark ' + (!known ? 'soft' : result.holds ? 'yes' : 'no'), !known ? '?' : result.holds ? '✓' : '✗'));
  const leaf = !['and', 'or', 'not'].includes(result.node.kind);
  if (leaf) row.append(element('code', '', result.node.text));
  row.append(element('span', 'words', result.words));
  item.append(row);
  if (result.children.length) {
    const list = element('ul');
    list.append(...result.children.map(whyItem));
    item.append(list);
  }
  return item;
}
const pairName = (query, key) => `q ${query}, k ${key}`;
function tell(pair) {
  const verdict = $('verdict'), why = $('why'), sees = $('sees');
  verdict.replaceChildren(), why.replaceChildren(), sees.textContent = '';
  if (!pair) {
    verdict.append(element('span', 'soft', 'Point at a pair.'));
    return;
  }
  const query = pair.row * DATA.cell, key = pair.col * DATA.cell;
  const state = cellState(pair.row, pair.col);
  if (DATA.cell > 1) {
    const last = (at, size) => Math.min(at + DATA.cell, size) - 1;
    verdict.append(element('span', 'mono', pairName(`${query}–${last(query, DATA.q_len)}`, `${key}–${last(key, DATA.k_len)}`)));
    verdict.append(element('span', state === 'absent' ? 'no' : state === 'full' ? 'yes' : 'soft',
      state === 'absent' ? 'no pair attends' : state === 'full' ? 'every pair attends' : 'some pairs attend'));
    why.append(element('li', 'words', `the first of them, ${pairName(query, key)}:`));
  } else {
    verdict.append(element('span', 'mono', pairName(query, key)));
    verdict.append(element('span', state === 'absent' ? 'no' : 'yes', state === 'absent' ? 'does not attend' : !DATA.weights ? 'attends' : DATA.kept[partOf(pair.row, pair.col) === 0 ? 0 : 1]));
    const keys = keysOf(query);
    sees.textContent = `query ${query}${DATA.offset ? ` (position ${query + DATA.offset})` : ''} sees ${keys.count} key${keys.count === 1 ? '' : 's'}` + (keys.count ? `: ${keys.text}` : '');
  }
  why.append(whyItem(evaluate(DATA.tree, query, key)));
}

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
function settle() {  // part of the grid always stays in view
  const across = (width - MARGIN) / scale, down = (height - MARGIN) / scale;
  left = clamp(left, -across * .8, DATA.cols - across * .2), top_ = clamp(top_, -down * .8, DATA.rows - down * .2);
}
function fit() {
  const across = Math.max(40, width - MARGIN - 14), down = Math.max(40, height - MARGIN - 14);
  scale = Math.min(across / Math.max(1, DATA.cols), down / Math.max(1, DATA.rows), 56);
  left = 0, top_ = 0, isFitted = true;
}
function zoom(factor, x = (width + MARGIN) / 2, y = (height + MARGIN) / 2) {
  const col = left + (x - MARGIN) / scale, row = top_ + (y - MARGIN) / scale;
  scale = clamp(scale * factor, .05, 80);
  left = col - (x - MARGIN) / scale, top_ = row - (y - MARGIN) / scale, isFitted = false;
  settle(), draw();
}
function pairAt(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const col = Math.floor(left + (x - MARGIN) / scale), row = Math.floor(top_ + (y - MARGIN) / scale);
  return x < MARGIN || y < MARGIN || col < 0 || row < 0 || col >= DATA.cols || row >= DATA.rows ? null : {row, col};
}
let drag = null;
canvas.addEventListener('pointerdown', event => {
  drag = {x: event.clientX, y: event.clientY, left, top_, moved: false};
  try { canvas.setPointerCapture(event.pointerId); } catch {}
});
canvas.addEventListener('pointermove', event => {
  if (drag) {
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (Math.hypot(dx, dy) > 4) drag.moved = true, canvas.classList.add('dragging');
    if (drag.moved) left = drag.left - dx / scale, top_ = drag.top_ - dy / scale, isFitted = false, settle();
  }
  hovered = drag && drag.moved ? null : pairAt(event);
  tell(hovered || pinned), draw();
});
canvas.addEventListener('pointerup', event => {
  if (drag && !drag.moved) {
    const pair = pairAt(event);
    pinned = pair && pinned && pair.row === pinned.row && pair.col === pinned.col ? null : pair;
  }
  drag = null, canvas.classList.remove('dragging'), tell(hovered || pinned), draw();
});
canvas.addEventListener('pointerleave', () => { hovered = null; tell(pinned), draw(); });
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(Math.exp(-clamp(event.deltaY, -120, 120) * .0022), event.clientX - box.left, event.clientY - box.top);
}, {passive: false});
canvas.addEventListener('dblclick', () => { fit(), draw(); });
canvas.addEventListener('keydown', event => {
  const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (move && DATA.rows && DATA.cols) {
    const from = pinned || hovered || {row: 0, col: 0};
    hovered = null;
    pinned = {row: clamp(from.row + move[0], 0, DATA.rows - 1), col: clamp(from.col + move[1], 0, DATA.cols - 1)};
    tell(pinned), draw();
  } else if (event.key === '+' || event.key === '=') zoom(1.4);
  else if (event.key === '-') zoom(1 / 1.4);
  else if (event.key === '0') fit(), draw();
  else if (event.key === 'Escape') pinned = null, tell(hovered), draw();
  else return;
  event.preventDefault();
});
$('in').onclick = () => zoom(1.5);
$('out').onclick = () => zoom(1 / 1.5);
$('fit').onclick = () => { fit(), draw(); };
$('theme').onclick = () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme === 'dark';
  root.dataset.theme = dark ? 'light' : 'dark';
  restyle();
};
function restyle() { readColours(), paintImage(), draw(); }

// Heads and batch entries.
let place = DATA.places[0];
function choosePlace(batch, head) {
  const inBatch = DATA.places.filter(p => p.batch === batch);
  place = inBatch.find(p => p.head === head) || inBatch[0];
  useView(DATA.views[place.view]);
  const offer = (select, label, values, value) => {
    select.replaceChildren(...values.map(v => { const made = element('option', '', String(v)); made.value = String(v); return made; }));
    select.value = String(value), label.hidden = values.length < 2;
  };
  const sorted = values => [...new Set(values)].sort((a, b) => a - b);
  offer($('batch'), $('batches'), sorted(DATA.places.map(p => p.batch)), place.batch);
  offer($('head'), $('heads'), sorted(inBatch.map(p => p.head)), place.head);
  $('inks').hidden = PARTS.length === 0;
  $('caption').textContent = place.caption;
  repaint();
}
function repaint() { drawLegend(), paintImage(), tell(hovered || pinned), chooseTile(tileSize); }
$('batch').onchange = () => choosePlace(Number($('batch').value), place.head);
$('head').onchange = () => choosePlace(place.batch, Number($('head').value));
$('ink').onchange = repaint;
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', restyle);

function chooseTile(size) {
  tileSize = size;
  $('tile').value = String(size);
  const legend = $('tiles');
  legend.replaceChildren();
  if (size) {
    const {sums, rows, cols} = tiles(size), all = rows * cols;
    const share = count => all ? (100 * count / all).toFixed(1) + '%' : '';
    for (const [state, name] of [['full', 'full: every pair attends'], ['partial', 'partial'], ['absent', 'absent: never visited']]) {
      const line = element('tr'), head = element('th');
      head.append(element('span', 'key ' + state), name);
      line.append(head, element('td', 'number', sums[state].toLocaleString('en')), element('td', 'number', share(sums[state])));
      legend.append(line);
    }
  }
  $('tilecard').hidden = !size;
  draw();
}
function resize() {
  const box = canvas.parentElement.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  width = box.width, height = box.height;
  canvas.width = Math.round(width * ratio), canvas.height = Math.round(height * ratio);
  if (isFitted) fit();
  settle(), draw();
}
for (let size = DATA.cell * 2, made = 0; made < 9 && size < 2 * Math.max(DATA.q_len, DATA.k_len, 2); size *= 2, ++made) {
  const option = element('option', '', `${size} x ${size}`);
  option.value = String(size);
  $('tile').append(option);
}
$('tile').onchange = () => chooseTile(Number($('tile').value));
readColours(), resize(), choosePlace(DATA.batch, DATA.head);
new ResizeObserver(resize).observe(canvas.parentElement);
window.keyhole = {DATA, LEAVES, evaluate, attends, partOf, choosePlace, tiles, keysOf, cellState, chooseTile, view: () => ({scale, left, top: top_, hovered, pinned}),
  place: (row, col) => { const box = canvas.getBoundingClientRect(); return {x: box.left + toX(col) + scale / 2, y: box.top + toY(row) + scale / 2}; }};
)js";

}  // namespace keyhole
