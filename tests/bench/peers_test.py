#!/usr/bin/env python3
# tests/bench/peers_test.py [KEYHOLE]
# What bench/peers makes of its records and lists: verdicts, tables, DRAM sums, what is resumed. Where PyTorch is installed and
# the keyhole program is given, also that the patterns written a second time in bench/peers/patterns.py keep the pairs of
# Keyhole's own. Nothing is run here: compare_test.py does that.
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
KEYHOLE = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else None

import bars  # noqa: E402
import cases  # noqa: E402
import dram  # noqa: E402
import records  # noqa: E402
import tables  # noqa: E402

try:
    import patterns
except ImportError:
    patterns = None

SHAPE = {"batch": 1, "heads": 16, "length": 16384, "head_dim": 128, "dtype": "bf16"}


def lines_of(name, pattern, keyhole, **peers):
    """The records of one case."""
    lines = [{"case": name, "who": "mask", "name": name, "pattern": pattern, **SHAPE, "pairs": 100}]
    lines.append({"case": name, "who": "keyhole", "pairs": 100, **keyhole})
    return lines + [{"case": name, "who": who, **fields} for who, fields in peers.items()]


def verdicts(lines, who="keyhole"):
    """{(against, pass): text}, for the bars of the repository that judge `who`."""
    judged = [v for v in bars.judged(records.grouped(lines), cases.read_bars()) if v.bar.who == who]
    return {(f"{v.bar.against}@{v.bar.on}" if v.bar.on else v.bar.against, v.bar.passes): v.text() for v in judged}


class Bars(unittest.TestCase):
    def test_a_ratio_below_the_bar_is_missed_and_one_at_it_is_met(self):
        ours = {"forward_ms": 1.0, "backward_ms": 1.0}
        found = verdicts(lines_of("causal-4k", "causal", ours, fa2={"forward_ms": 0.99, "backward_ms": 0.95}))
        self.assertEqual(found["fa2", "forward"], "0.99 (1.00) MISSED")
        self.assertEqual(found["fa2", "backward"], "0.95 (0.95) met")

    def test_a_backend_is_judged_by_its_own_times_and_pairs(self):
        times = {"forward_ms": 1.0, "backward_ms": 2.0}
        peers = {"sm80": {**times, "pairs": 100}, "fa2": {"forward_ms": 1.1, "backward_ms": 1.8}, "flex": {"forward_ms": 3.0}}
        lines = lines_of("causal-16k", "causal", {"forward_ms": 0.5, "backward_ms": 1.0}, **peers)
        self.assertEqual(verdicts(lines)["fa2", "forward"], "2.20 (1.00) met")
        self.assertEqual(
            verdicts(lines, "sm80"), {("fa2", "forward"): "1.10 (1.00) met", ("fa2", "backward"): "0.90 (0.95) MISSED"}
        )
        shown = {(row[2], row[3], row[4]): row[-3:] for row in tables.all_tables(lines)["bars"]}
        self.assertEqual(shown["Keyhole", "FA2", "forward"], ["2.20", "1.00", "met"])
        self.assertEqual(shown["Keyhole sm80", "FA2", "forward"], ["1.10", "1.00", "met"])
        lines[2]["pairs"] = 99
        self.assertEqual(verdicts(lines, "sm80")["fa2", "forward"], "(1.00) VOID: 99 pairs against 100")
        self.assertEqual(verdicts(lines)["fa2", "forward"], "2.20 (1.00) met")

    def test_a_backend_of_ours_is_no_peer(self):
        lines = lines_of("causal-16k", "causal", {"forward_ms": 1.0}, sm80={"forward_ms": 0.5}, fa2={"forward_ms": 2.0})
        header, row = tables.all_tables(lines)["times"]
        self.assertIn("Keyhole sm80", header)
        self.assertEqual(row[header.index("x best peer")], "2.00")

    def test_flex_has_a_lower_bar_where_the_rate_decides(self):
        ours, flex = {"forward_ms": 1.0}, {"forward_ms": 0.9}
        for name, text in (("window4095-128k", "0.90 (0.85) met"), ("window1023-128k", "0.90 (1.00) MISSED")):
            self.assertEqual(verdicts(lines_of(name, "causal", ours, flex=flex))["flex", "forward"], text)

    def test_a_bar_may_be_about_another_case_and_both_passes(self):
        ours, dense = {"forward_ms": 1.0, "backward_ms": 2.0}, {"forward_ms": 20.0, "backward_ms": 9.0}
        found = verdicts(lines_of("causal-128k", "causal", dense) + lines_of("window4095-128k", "causal & window(4095)", ours))
        self.assertEqual(found["keyhole@causal-128k", "forward"], "20.00 (10.00) met")
        self.assertEqual(found["keyhole@causal-128k", "both"], "9.67 (10.00) MISSED")

    def test_single_launches_are_judged_apart_and_a_quotient_is_a_bar(self):
        dense = lines_of("causal-16k", "causal", {}, cudnn={"forward_ms": 9.0, "forward_paused_ms": 1.73})
        found = verdicts(dense + lines_of("bigbird-16k", "x", {"forward_ms": 0.1, "forward_paused_ms": 0.31}))
        self.assertEqual(found["cudnn@causal-16k", "forward"], "5.58 (5.77) MISSED")

    def test_rates_are_for_each_pair_that_attends(self):
        dense = lines_of("dense-16k", "dense", {"forward_paused_ms": 1.0})
        for ms, text in ((0.25, "1.00 (0.80) met"), (0.32, "0.78 (0.80) MISSED")):
            sparse = lines_of("own-random5-16k", "x", {"forward_paused_ms": ms, "pairs": 25})
            sparse[0]["pairs"] = 25
            self.assertEqual(verdicts(dense + sparse)["keyhole@dense-16k", "forward"], text)

    def test_rates_are_for_each_pair_of_the_tiles_that_are_visited_whatever_the_heads(self):
        short = lines_of("streaming-16k", "x", {"forward_paused_ms": 1.0, "visited_pairs": 50})
        for ms, text in ((8.2, "0.98 (0.97) met"), (8.4, "0.95 (0.97) MISSED")):
            long = lines_of("streaming-128k", "x", {"forward_paused_ms": 2 * ms, "visited_pairs": 400})
            long[0]["batch"] = 2
            self.assertEqual(verdicts(short + long)["keyhole@streaming-16k", "forward"], text)
        del short[1]["visited_pairs"]
        self.assertEqual(verdicts(short + long)["keyhole@streaming-16k", "forward"], "(0.97) not measured")

    def test_a_line_with_a_word_that_is_not_known_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bars.txt"
            rests = ("sideways queued call 1 *", "forward often call 1 *", "forward queued tile 1 *")
            for line in (*(f"keyhole fa2 {rest}" for rest in rests), "fa2 keyhole forward queued call 1 *"):
                path.write_text(line)
                with self.assertRaisesRegex(SystemExit, "(sideways|often|tile|fa2) is none of"):
                    cases.read_bars(path)

    def test_what_was_not_run_is_not_measured(self):
        lines = lines_of("causal-4k", "causal", {"why_not": "out of memory"}, fa2={"forward_ms": 1.0})
        self.assertEqual(verdicts(lines)["fa2", "forward"], "(1.00) not measured")
        self.assertIn("out of memory", tables.as_text(lines))

    def test_other_pairs_void_a_bar(self):
        lines = lines_of("causal-4k", "causal", {"forward_ms": 1.0, "pairs": 101}, fa2={"forward_ms": 2.0})
        self.assertEqual(verdicts(lines)["fa2", "forward"], "(1.00) VOID: 101 pairs against 100")

    def test_every_name_of_a_bar_is_one_of_a_case(self):
        names = [case.name for case in cases.read_cases()]
        for bar in cases.read_bars():
            self.assertIn(bar.on, ["", *names])
            for word in bar.names.split(","):
                self.assertTrue(any(cases.matches(name, word) for name in names), word)

    def test_cases_with_bars_come_first_in_their_order(self):
        ordered = [case.name for case in cases.most_telling_first(cases.read_cases(), cases.read_bars())]
        self.assertLess(ordered.index("dilated-128k"), ordered.index("causal-16k"))
        self.assertLess(ordered.index("causal-16k"), ordered.index("memory-dense"))
        self.assertEqual(sorted(ordered), sorted(case.name for case in cases.read_cases()))


class Resumed(unittest.TestCase):
    def log(self, folder, is_resumed):
        return records.Log(pathlib.Path(folder) / "records.jsonl", is_resumed)

    def test_a_resumed_run_keeps_what_is_there_and_another_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            for line in lines_of("a", "causal", {"forward_ms": 1.0}):
                self.log(folder, True).add(**line)
            self.assertTrue(self.log(folder, True).cases()["a"].has("keyhole", "forward"))
            self.assertFalse(self.log(folder, True).cases()["a"].has("keyhole", "both"))
            self.assertEqual(self.log(folder, False).cases(), {})

    def test_what_is_timed_again_replaces_and_bytes_are_added(self):
        lines = lines_of("a", "causal", {"why_not": "out of memory"})
        lines.append({"case": "a", "who": "keyhole", "forward_ms": 1.0})
        lines.append({"case": "a", "who": "keyhole", "forward_dram_bytes": 7})
        found = records.grouped(lines)["a"].by["keyhole"]
        self.assertEqual(found, {"case": "a", "who": "keyhole", "pairs": 100, "forward_ms": 1.0, "forward_dram_bytes": 7})

    def test_a_pass_that_is_timed_again_leaves_the_other_one(self):
        lines = lines_of("a", "causal", {"forward_ms": 1.0, "forward_bytes": 5, "backward_ms": 3.0})
        lines.append({"case": "a", "who": "keyhole", "forward_ms": 2.0})
        found = records.grouped(lines)["a"].by["keyhole"]
        self.assertEqual(found, {"case": "a", "who": "keyhole", "pairs": 100, "forward_ms": 2.0, "backward_ms": 3.0})


class Cases(unittest.TestCase):
    def test_what_no_peer_takes_is_not_read(self):
        text = cases.CASE_FILE.read_text()
        self.assertRegex(text, r"(?m)^gather +1 +16:1 +16384:65536 ")
        self.assertFalse([case.name for case in cases.read_cases() if case.name.startswith("gather")])


class Document(unittest.TestCase):
    LINES = lines_of("causal-4k", "causal", {"forward_ms": 1.0}, fa2={"forward_ms": 2.0})

    def written(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text(text)
            tables.write(path, self.LINES)
            return path.read_text()

    def test_the_marked_places_are_filled_and_the_rest_is_kept(self):
        text = self.written("before\n<!-- table count -->\nold\n<!-- end -->\nafter\n")
        self.assertEqual(text, "before\n<!-- table count -->\n1 of 5 bars met, 4 not measured\n<!-- end -->\nafter\n")

    def test_a_mark_without_a_table_is_refused(self):
        self.assertRaises(SystemExit, self.written, "<!-- table nothing -->\n<!-- end -->\n")

    def test_patterns_are_held_against_the_dense_attention_one_would_run_instead(self):
        lines = self.LINES + lines_of("w", "causal & window(9)", {"forward_ms": 0.5}, flex={"forward_ms": 0.6})
        rows = tables.overview_table(list(records.grouped(lines).values()))
        self.assertEqual(rows[2][-3:], ["1.20 / -", "4.00 / -", "-"])


class FrontPage(unittest.TestCase):
    """The table of README.md is written by hand, of two records: it must say what they say."""

    COMPARED = ROOT / "records/gpu/2026-11-16-h200-compare-everybody.jsonl"
    FLASH_ATTENTION = ROOT / "records/gpu/2026-11-16-h200-flash-attention-3.md"

    @staticmethod
    def rows(path, columns):
        rows = [line[2:-2].split(" | ") for line in path.read_text().splitlines() if line.startswith("| ")]
        return [row for row in rows if len(row) == columns][1:]

    def flash_attention(self):
        """{(pattern, tokens): "forward / backward"}, how many times as fast Keyhole is, queued; batches of one, head_dim 128."""
        found = {}
        for title, *cells in self.rows(self.FLASH_ATTENTION, 7):
            pattern, shape = title.rsplit(None, 2)[0], title.split()[-2]
            if not shape.startswith("1x") or not title.endswith(" d128"):
                continue
            queued = [float(re.search(r"\((.*)\)", cells[at])[1]) for at in (0, 1, 3, 4)]
            ours, theirs = queued[::2], queued[1::2]
            if cells[0].endswith("ms"):  # a rate is better when it is higher, a time when it is lower
                ours, theirs = theirs, ours
            found[pattern, f"{int(shape.split('x')[2]):,}"] = tables.both(a / b for a, b in zip(ours, theirs))
        return found

    def test_its_table_has_the_figures_of_the_records(self):
        compared = {tuple(row[:2]): row for row in tables.overview_table(self.cases())}
        beside = self.flash_attention()
        shown = self.rows(ROOT / "README.md", 7)
        self.assertEqual(len(shown), 8)
        for row in shown:
            row[0] = row[0].replace("\\|", "|")
            _, _, kept, ours, flex, _, cudnn = compared[row[0], row[1]]
            self.assertEqual(row[2:], [kept, ours, flex, beside.get((row[0], row[1]), "-"), cudnn])

    def cases(self):
        return list(records.grouped(records.read([self.COMPARED])).values())


class Program(unittest.TestCase):
    """Records of `keyhole bench`."""

    def record(self, suite, **fields):
        run = {"machine": {"gpu": "H200", "cpu": "x"}, "commit": "abc", "dirty": False, "time": "T", "command": "keyhole bench"}
        return {"suite": suite, "case": "a", "pattern": "blocks(16)", **run, "ms": {"median": 0.5}, **fields}

    def test_a_table_has_the_columns_that_its_records_fill(self):
        faster = {"dense_ms": {"median": 12.3456}, "speedup": 24.6912}
        found = tables.program.all_tables([self.record("blocks", **faster), self.record("blocks")])
        header = ["case", "pattern", "dense ms", "ms", "speed-up"]
        rows = [["a", "blocks(16)", "12.35", "0.500", "24.69"], ["a", "blocks(16)", "-", "0.500", "-"]]
        self.assertEqual(found, {"blocks: `keyhole bench`, H200, commit abc, T": [header, *rows]})

    def test_a_pattern_that_never_wins_is_told(self):
        lines = [self.record("break-even", break_even=found, speedup=1.5) for found in (1208, None)]
        (table,) = tables.program.all_tables(lines).values()
        self.assertEqual([row[-1] for row in table], ["beats dense from", "1,208", "never"])

    def test_runs_have_tables_of_their_own(self):
        lines = [self.record("forward"), self.record("forward", command="keyhole bench --cold"), self.record("backward")]
        self.assertEqual([len(rows) for rows in tables.program.all_tables(lines).values()], [2, 2, 2])

    def test_what_the_program_writes_is_understood(self):
        lines = records.read([ROOT / "records/gpu/2026-11-16-h200-bench-again.jsonl"])
        self.assertTrue(tables.program.is_of_program(lines))
        text = tables.as_text(lines)
        for words in ("streaming: `keyhole bench streaming", "bench break-even", "beats dense from", "FFMA 64,917"):
            self.assertIn(words, text)


class OwnCases(unittest.TestCase):
    """Those that stand for a property of Keyhole have no place among what a user would run."""

    LINES = [
        *lines_of("own-x-16k-nan", "~sinks(1)", {"forward_ms": 0.5}),
        *lines_of("own-x-16k", "~sinks(1)", {"forward_ms": 0.4}),
    ]

    def test_they_are_timed_like_others_and_a_nan_is_told(self):
        found = tables.all_tables(self.LINES)
        self.assertEqual([row[0] for row in found["times"][1:]], ["~sinks(1), one NaN", "~sinks(1)"])
        self.assertEqual(len(found["overview"]), 1)


class Dram(unittest.TestCase):
    def test_kernels_are_summed_call_by_call_without_marks_and_units(self):
        text = (
            '==PROF== Connected\n"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n'
            '"","","byte","byte"\n"0","spin_kernel(long)","64","0"\n"1","a<1, 2>","1,234","100"\n"2","b","1000","0"\n'
            '"3","at::cuda::<unnamed>::spin_kernel(long)","64","0"\n"4","b","5","2"\n==PROF== Disconnected\n'
        )
        self.assertEqual(dram.sums_of(text), [2334, 7])

    def test_a_refusal_is_told(self):
        with self.assertRaisesRegex(dram.NotMeasured, "ERR_NVGPUCTRPERM"):
            dram.sums_of("==ERROR== ERR_NVGPUCTRPERM - no permission\n")


@unittest.skipUnless(patterns, "PyTorch is not installed")
@unittest.skipUnless(KEYHOLE, "the keyhole program was not given")
class Patterns(unittest.TestCase):
    def keyhole_pairs(self, *words):
        told = subprocess.run([KEYHOLE, "plan", *map(str, words), "--json"], check=True, capture_output=True, text=True).stdout
        return json.loads(told)["pairs"]

    def test_pairs_are_those_of_keyhole(self):
        for case in [case for case in cases.read_cases() if not patterns.repeated_in(case.pattern)]:
            case = case._replace(length=min(case.length, 8192))
            with self.subTest(case.name):
                counts = patterns.count_tiles(patterns.pattern_of(case, "cpu"), case.length, "cpu")
                self.assertEqual(int(counts.sum()), self.keyhole_pairs(case.pattern, "--len", case.length))

    def test_pairs_that_are_repeated_are_those_of_keyhole(self):
        repeated = [found for case in cases.read_cases() if (found := patterns.repeated_in(case.pattern))]
        self.assertEqual(len(repeated), 2)
        for rows, columns, text in repeated:
            q, k = patterns.torch.arange(rows), patterns.torch.arange(columns)
            pairs = patterns.pattern_of_text(text, rows, columns, "cpu").allows(q[:, None], k)
            expected = self.keyhole_pairs(text, "--q-len", rows, "--k-len", columns, "--offset", 0)
            self.assertEqual(int(pairs.sum()), expected)

    def test_repeated_pairs_return_after_their_period(self):
        pattern = patterns.pattern_of_text("repeated(6, 4, causal & window(2))", 20, 20, "cpu")
        q, k = (patterns.torch.arange(20) for _ in "qk")
        expected = patterns.pattern_of_text("causal & window(2)", 6, 4, "cpu").allows(q[:, None] % 6, k % 4)
        self.assertTrue(bool((pattern.allows(q[:, None], k) == expected).all()))


if __name__ == "__main__":
    unittest.main()
