#!/usr/bin/env python3
# tests/cli/html_test.py
# Opens the pages of `keyhole show --html` in headless Chromium. Law: on every pair of every page, the
# definitions that the page evaluates (why) say the same as its bitmap (whether), and the bitmap holds as
# many pairs as the text picture says; so for every head on the page. The colour of a pair is that of the
# first part that allows it, or says whether it keeps weight. Two pages are also used by hand: pointer, wheel, keys, tiles, theme; heads, colours.
"""usage: html_test.py --path FOLDER_OF_KEYHOLE; exit status 77 when there is no Chromium"""

import argparse
import html
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77

# Beyond the catalog's examples: operators, offsets, arrays, ends of parameters, a cell that is not a pair.
MORE = [
    ("causal & (window(4) | sinks(2)) & ~dilated(3)", ["--q-len", "9", "--k-len", "21"]),
    ("causal | prefix(7)", ["--q-len", "21", "--k-len", "9"]),
    ("window(inf, 2) & ~window(3, inf)", ["--len", "17", "--offset", "-4"]),
    ("documents(3, 0, 4, 13) & causal", ["--len", "20"]),
    ("per_head(causal, window(2) | random(2, 1, 5))", ["--len", "16", "--head", "1"]),
    ("per_batch(causal, blocks(4) | exponential)", ["--len", "20", "--at-batch", "1"]),
    ("packed([3, 0, 4, 1], [5, 2, 4, 0], causal & window(2)) | sinks(1)", ["--q-len", "8", "--k-len", "11"]),
    ("at(q=[-2, 7, 7, 100], k=[0, 5, -1, 7, 8], window(2) & causal | random(2, 1, 3))", ["--q-len", "4", "--k-len", "5"]),
    ("bigbird(8, 3, 2, 1, 7) & causal", ["--len", "200"]),
    ("fixed(7, 2) | dilated(5, 3) | ~dense", ["--len", "64", "--offset", "-20"]),
    ("streaming(16, 64)", ["--len", "6000"]),
    ("causal", ["--q-len", "0", "--k-len", "4"]),
    ("causal & (window(30) | sinks(2))", ["--len", "50", "--alpha", "1.5"]),
    ("per_head(causal, window(9))", ["--len", "40", "--head", "1", "--top-k", "3", "--seed", "5"]),
]

# Runs inside each page, after its own script, and tells the page that holds the frames.
COMPARE = """
(() => {
  const k = window.keyhole, D = k.DATA, result = {wrong: [], unknown: 0, pairs: 0, checked: 0, words: ''};
  try {
    // The operands of the first `|` below names and `&`, as the answer to a pair has them.
    const flat = r => r.node.kind === 'or' ? r.children.flatMap(flat) : [r];
    const operands = r => r.node.kind === 'or' ? flat(r) : ['same', 'and'].includes(r.node.kind)
      ? r.children.map(operands).find(found => found.length) || [] : [];
    const wrong = what => { if (result.wrong.length < 3) result.wrong.push(what); };
    const start = {batch: D.batch, head: D.head};
    result.places = D.places.length;
    for (const place of [...D.places.filter(p => p.batch !== start.batch || p.head !== start.head), start]) {
      k.choosePlace(place.batch, place.head);
      let pairs = 0, kept = 0;
      for (let q = 0; q < D.q_len && D.cell === 1; ++q) for (let key = 0; key < D.k_len; ++key) {
        const why = k.evaluate(D.tree, q, key), truth = k.attends(q, key);
        ++result.checked, pairs += truth;
        if (why.holds === null) ++result.unknown;
        else if (why.holds !== truth) wrong([place, q, key, truth]);
        const first = truth ? operands(why).findIndex(part => part.holds) : -1, drawn = k.partOf(q, key);
        if (D.weights ? truth !== drawn >= 0 : D.parts.length && drawn !== Math.min(first, 5)) wrong([place, q, key, 'part', drawn, first]);
        kept += drawn === 0;
      }
      if (D.cell === 1 && pairs !== D.pairs) wrong([place, 'pairs', pairs, D.pairs]);
      result.pairs = pairs, result.kept = kept;
    }
    result.legend = document.getElementById('legend').innerText.length;
    if (D.cell > 1) {  // cells: a full one holds its first pair, an absent one does not
      for (let r = 0; r < D.rows; ++r) for (let c = 0; c < D.cols; ++c) {
        const why = k.evaluate(D.tree, r * D.cell, c * D.cell), state = k.cellState(r, c);
        ++result.checked;
        if (state !== 'partial' && why.holds !== (state === 'full') && result.wrong.length < 3) result.wrong.push([r, c, state]);
      }
      result.pairs = D.pairs;
    }
    const seen = {}, visit = node => { if (node.name) seen[node.name] = 1; (node.children || []).forEach(visit); };
    visit(D.tree), result.leaves = Object.keys(seen);
    result.text = document.body.innerText.length;
    result.explain = document.querySelectorAll('#explain tr').length;
  } catch (error) { result.error = String(error && error.stack || error); }
  parent.postMessage(JSON.stringify({name: location.pathname.split('/').pop(), ...result}), '*');
})();
"""

# The page of a pattern with two heads in each of two batch entries, of which one batch entry has equal heads.
USE_HEADS = """
(() => {
  const k = window.keyhole, failures = [];
  const expect = (what, condition) => { if (!condition) failures.push(what); };
  const text = id => document.getElementById(id).innerText;
  const choose = (id, value) => { const s = document.getElementById(id); s.value = value, s.dispatchEvent(new Event('change')); };
  const pixel = (row, col) => {
    const canvas = document.getElementById('canvas'), box = canvas.getBoundingClientRect(), at = k.place(row, col), ratio = canvas.width / box.width;
    return [...canvas.getContext('2d').getImageData((at.x - box.left) * ratio, (at.y - box.top) * ratio, 1, 1).data].join();
  };
  try {
    expect('head and batch are offered', !document.getElementById('heads').hidden && !document.getElementById('batches').hidden);
    expect('views are shared: ' + k.DATA.views.length, k.DATA.places.length === 4 && k.DATA.views.length === 3);
    expect('begins where it was asked to: ' + text('caption'), text('caption').includes('head 1, batch entry 0'));
    choose('head', '0');
    expect('caption: ' + text('caption'), text('caption').includes('head 0, batch entry 0') && text('caption').includes(k.DATA.pairs + ' of'));
    expect('legend: ' + text('legend'), text('legend').includes('window(2)') && text('legend').includes('sinks(1)'));
    expect('parts differ in colour', pixel(9, 0) !== pixel(9, 9) && pixel(9, 8) === pixel(9, 9) && pixel(9, 9) !== pixel(0, 9));
    choose('ink', 'one');
    expect('one colour', pixel(9, 0) === pixel(9, 9) && text('legend').includes('attends'));
    choose('ink', 'parts'), choose('batch', '1');
    expect('batch: ' + text('caption'), text('caption').includes('head 0, batch entry 1') && text('caption').includes('144 of 144'));
    expect('one part, no choice of colours', document.getElementById('inks').hidden && text('legend').includes('attends'));
  } catch (error) { failures.push(String(error && error.stack || error)); }
  parent.postMessage(JSON.stringify({name: location.pathname.split('/').pop(), use: failures}), '*');
})();
"""

# The page of "causal & (window(2) | sinks(1))", 12 tokens, used like a person would.
USE = """
(() => {
  const k = window.keyhole, canvas = document.getElementById('canvas'), failures = [];
  const expect = (what, condition) => { if (!condition) failures.push(what); };
  const at = (row, col) => { const p = k.place(row, col); return {clientX: p.x, clientY: p.y, bubbles: true, cancelable: true, pointerId: 1}; };
  const text = id => document.getElementById(id).innerText;
  try {
    canvas.dispatchEvent(new PointerEvent('pointermove', at(5, 3)));
    expect('hover verdict: ' + text('verdict'), /q 5, k 3/.test(text('verdict')) && /attends/.test(text('verdict')) && !/not/.test(text('verdict')));
    expect('hover why: ' + text('why'), text('why').includes('k <= q: 3 <= 5') && text('why').includes('k - q = -2, in [-2, 2]') && text('why').includes('3 >= 1'));
    expect('sees: ' + text('sees'), text('sees').includes('query 5 sees 4 keys: 0, 3–5'));
    canvas.dispatchEvent(new PointerEvent('pointermove', at(3, 7)));
    expect('refusal: ' + text('verdict'), text('verdict').includes('does not attend') && text('why').includes('7 > 3'));
    const before = k.view().scale;
    canvas.dispatchEvent(new WheelEvent('wheel', {...at(3, 7), deltaY: -120}));
    expect('wheel zooms in', k.view().scale > before * 1.2);
    expect('the pair under the pointer stays', Math.abs(k.place(3, 7).x - at(3, 7).clientX) < 1);
    document.getElementById('fit').click();
    expect('fit', Math.abs(k.view().scale - before) < 1e-9);
    document.getElementById('in').click();
    expect('button zooms in', k.view().scale > before);
    const left = k.view().left;
    const start = at(4, 4);
    canvas.dispatchEvent(new PointerEvent('pointerdown', start));
    canvas.dispatchEvent(new PointerEvent('pointermove', {...start, clientX: start.clientX - 60}));
    canvas.dispatchEvent(new PointerEvent('pointerup', {...start, clientX: start.clientX - 60}));
    expect('drag moves', k.view().left > left);
    document.getElementById('fit').click();
    canvas.dispatchEvent(new PointerEvent('pointerdown', at(2, 2)));
    canvas.dispatchEvent(new PointerEvent('pointerup', at(2, 2)));
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    expect('keys walk: ' + text('verdict'), text('verdict').includes('q 2, k 3'));
    const select = document.getElementById('tile');
    select.value = '4', select.dispatchEvent(new Event('change'));
    const rows = [...document.querySelectorAll('#tiles tr')].map(row => row.innerText.replace(/\\s+/g, ' ').trim());
    expect('tiles: ' + rows.join('; '), rows[0].includes(' 0 ') && rows[1].includes('partial 6 ') && rows[2].includes(' 3 '));
    const colour = getComputedStyle(document.body).backgroundColor;
    document.getElementById('theme').click();
    expect('theme', getComputedStyle(document.body).backgroundColor !== colour);
    expect('explain table', document.querySelectorAll('#explain tr').length >= 5);
  } catch (error) { failures.push(String(error && error.stack || error)); }
  parent.postMessage(JSON.stringify({name: location.pathname.split('/').pop(), use: failures}), '*');
})();
"""

FRAME = """<!doctype html><meta charset="utf-8"><body><pre id="results"></pre><script>
const pages = %s, results = [], expected = %d;
addEventListener('message', event => {
  results.push(JSON.parse(event.data));
  if (results.length === expected) document.getElementById('results').textContent = JSON.stringify(results);
});
for (const page of pages) {
  const frame = document.createElement('iframe');
  frame.width = 1200, frame.height = 800, frame.src = page;
  document.body.append(frame);
}
</script>"""


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    return None


def keyhole(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"keyhole {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


ARRAYS = {
    "documents", "tree", "grid", "neighborhood", "volume", "volume_neighborhood",
    "tiles", "bitmaps", "csr", "mask", "per_batch", "at", "packed",
}  # fmt: skip


def lengths_for(pattern):
    # What has arrays has the lengths of its example.
    if pattern["name"] in ARRAYS:
        return ["--q-len", str(pattern["example_q_len"]), "--k-len", str(pattern["example_k_len"])]
    return ["--len", "40"]


def write_chosen(path):
    """A selection of the first key and the query's own, for each of 12 queries, as np.save writes it."""
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 12, 2), }".ljust(117) + "\n"
    keys = [key for query in range(12) for key in (0, query or -1)]
    path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + struct.pack("<24i", *keys))
    return str(path)


def make_pages(program, folder):
    patterns = json.loads(keyhole(program, "info", "--patterns", "--json"))
    subjects = [(p["example"], lengths_for(p)) for p in patterns] + MORE
    subjects.append(("causal", ["--chosen", write_chosen(folder / "chosen.npy")]))
    pages = {}
    for number, (pattern, options) in enumerate(subjects):
        name = f"page{number}.html"
        told = json.loads(keyhole(program, "show", pattern, *options, "--html", str(folder / name), "--json"))
        pages[name] = (pattern, options, told["pairs"], told.get("kept_pairs", told.get("chosen_pairs")))
        add_script(folder / name, COMPARE)
    keyhole(program, "show", "causal & (window(2) | sinks(1))", "--len", "12", "--html", str(folder / "use.html"))
    add_script(folder / "use.html", USE)
    two_heads = "per_batch(per_head(causal & (window(2) | sinks(1)), causal), dense)"
    keyhole(program, "show", two_heads, "--len", "12", "--head", "1", "--html", str(folder / "heads.html"))
    add_script(folder / "heads.html", USE_HEADS)
    return pages


def add_script(path, script):
    page = path.read_text(encoding="utf-8")
    refused = re.findall(r"""(?:src|href)\s*=\s*["'][^"']+|url\(|@import|https?://(?!www\.w3\.org)[^\s"']+""", page)
    if refused:
        raise SystemExit(f"{path.name} refers to something outside itself: {refused[:3]}")
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")


def open_pages(chromium, folder, names):
    (folder / "frame.html").write_text(FRAME % (json.dumps(names), len(names)), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000", "--dump-dom",
               (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    found = re.search(r'<pre id="results">(.+?)</pre>', done.stdout, re.S)
    if not found:
        raise SystemExit(f"the pages did not answer (exit {done.returncode})\n{done.stderr[-2000:]}")
    return json.loads(html.unescape(found[1]))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--path", required=True)
    program = str(pathlib.Path(parser.parse_args().path) / "keyhole")
    chromium = find_chromium()
    if chromium is None:
        print("SKIPPED: no Chromium on the PATH; the pages of `keyhole show --html` were not opened")
        return SKIPPED
    failures, checked = [], 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        pages = make_pages(program, folder)
        for result in open_pages(chromium, folder, [*pages, "use.html", "heads.html"]):
            if "use" in result:
                failures += [f"{result['name']}: {what}" for what in result["use"]]
                continue
            pattern, options, pairs, kept = pages[result["name"]]
            where = f"{pattern} {' '.join(options)}"
            checked += result["checked"]
            if result.get("error"):
                failures.append(f"{where}: {result['error']}")
            elif result["wrong"]:
                failures.append(f"{where}: definition and bitmap disagree at {result['wrong']}")
            elif result["unknown"]:
                failures.append(f"{where}: {result['unknown']} pairs without an answer")
            elif result["pairs"] != pairs:
                failures.append(f"{where}: {result['pairs']} pairs on the page, {pairs} in JSON")
            elif kept is not None and result["kept"] != kept:
                failures.append(f"{where}: {result['kept']} pairs keep weight on the page, {kept} in JSON")
            elif pattern.startswith("per_") and kept is None and result["places"] < 2:
                failures.append(f"{where}: no choice of heads")
            elif not result["legend"]:
                failures.append(f"{where}: no legend")
            elif not result["explain"]:
                failures.append(f"{where}: no explain table")
    for failure in failures:
        print("FAILED", failure)
    print(f"{len(pages)} pages, {checked} pairs compared, two pages used: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
