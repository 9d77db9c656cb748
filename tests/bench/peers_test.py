#!/usr/bin/env python3
# tests/bench/peers_test.py [KEYHOLE]
# What bench/peers makes of its records: verdicts, tables, DRAM sums. Where PyTorch is installed and the keyhole program is
# given, also that the patterns written a second time in bench/peers/cases.py keep the pairs of Keyhole's own.
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
KEYHOLE = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else None

import dram  # noqa: E402
import tables  # noqa: E402

try:
    import cases
except ImportError:
    cases = None

SHAPE = {"batch": 1, "heads": 16, "length": 16384, "head_dim": 128, "dtype": "bf16"}


def records(pattern, keyhole, **peers):
    lines = [{"case": "x", "who": "mask", "name": "x", "pattern": pattern, **SHAPE, "pairs": 100}]
    lines.append({"case": "x", "who": "keyhole", "pairs": 100, **keyhole})
    return lines + [{"case": "x", "who": who, **fields} for who, fields in peers.items()]


def verdicts(lines):
    return {column: tables.verdict(c, ratio, least) for c, column, ratio, least in tables.bars(tables.grouped(lines))}


class Bars(unittest.TestCase):
    def test_a_ratio_below_the_bar_is_missed_and_one_at_it_is_met(self):
        ours = {"forward_ms": 1.0, "backward_ms": 1.0}
        found = verdicts(records("causal", ours, fa2={"forward_ms": 0.99, "backward_ms": 0.95}))
        self.assertEqual(found["FA2 forward"], "0.99 MISSED (1.00)")
        self.assertEqual(found["FA2 backward"], "0.95 met")

    def test_flex_has_a_lower_bar_where_the_rate_decides(self):
        ours, flex = {"forward_ms": 1.0}, {"forward_ms": 0.9}
        self.assertEqual(verdicts(records("causal & window(4095)", ours, flex=flex))["Flex forward"], "0.90 met")
        self.assertEqual(verdicts(records("causal & window(1023)", ours, flex=flex))["Flex forward"], "0.90 MISSED (1.00)")

    def test_what_was_not_run_is_not_measured(self):
        lines = records("causal", {"why_not": "not run (time)"}, fa2={"forward_ms": 1.0})
        self.assertEqual(set(verdicts(lines).values()), {"not measured"})
        self.assertIn("not run (time)", tables.as_text(lines))

    def test_other_pairs_void_a_bar(self):
        lines = records("causal", {"forward_ms": 1.0, "pairs": 101}, fa2={"forward_ms": 2.0})
        self.assertEqual(verdicts(lines)["FA2 forward"], "VOID: 101 pairs against 100")


class Cases(unittest.TestCase):
    """keyhole bench and keyhole_gpu_kernels read lists of their own; a name in both must mean the same case."""

    SAME = {"streaming(16, 64)": "causal & (window(63) | sinks(16))"}

    def rows(self, name):
        lines = (ROOT / "bench/cases" / name).read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]

    def test_a_name_means_the_same_to_both_programs(self):
        kernels = {}
        for line in self.rows("gpu_kernels.txt"):
            name, batch, heads, length, head_dim, dtype, pattern = line.split(None, 6)
            kernels[name] = (pattern, int(length), int(batch) * int(heads), int(head_dim), dtype)
        shared = 0
        for line in self.rows("gpu.txt"):
            name, rest = line.split(None, 1)
            pattern, length, heads, _, head_dim, dtype = rest.rsplit(None, 5)
            if name in kernels:
                shared += 1
                case = (self.SAME.get(pattern.strip(), pattern.strip()), int(length), int(heads), int(head_dim), dtype)
                self.assertEqual(case, kernels[name], name)
        self.assertGreater(shared, 20)


class Document(unittest.TestCase):
    def test_the_marked_places_are_filled_and_the_rest_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text("before\n<!-- table count -->\nold\n<!-- end -->\nafter\n")
            tables.write(path, records("causal", {"forward_ms": 1.0}, fa2={"forward_ms": 2.0}))
            self.assertEqual(
                path.read_text(), "before\n<!-- table count -->\n1 of 4 bars met, 3 not measured\n<!-- end -->\nafter\n"
            )

    def test_a_mark_without_a_table_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text("<!-- table nothing -->\n<!-- end -->\n")
            self.assertRaises(SystemExit, tables.write, path, records("causal", {}))


class Dram(unittest.TestCase):
    def test_kernels_are_summed_and_units_left_out(self):
        text = (
            '==PROF== Connected\n"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n'
            '"","","byte","byte"\n"0","a<1, 2>","1,234","100"\n"1","b","1000","0"\n==PROF== Disconnected\n'
        )
        self.assertEqual(dram.sum_metrics(text), 2334)

    def test_a_refusal_is_told(self):
        with self.assertRaisesRegex(dram.NotMeasured, "ERR_NVGPUCTRPERM"):
            dram.sum_metrics("==ERROR== ERR_NVGPUCTRPERM - no permission\n")


@unittest.skipUnless(cases, "PyTorch is not installed")
@unittest.skipUnless(KEYHOLE, "the keyhole program was not given")
class Patterns(unittest.TestCase):
    def test_pairs_are_those_of_keyhole(self):
        for case in cases.read_cases(ROOT / "bench/cases/gpu_kernels.txt", "*"):
            case = case._replace(length=min(case.length, 8192))
            with self.subTest(case.name):
                told = subprocess.run(
                    [KEYHOLE, "plan", case.pattern, "--len", str(case.length), "--json"],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                counts = cases.count_tiles(cases.pattern_of(case, "cpu"), case.length, "cpu")
                self.assertEqual(int(counts.sum()), json.loads(told)["pairs"])


if __name__ == "__main__":
    unittest.main()
