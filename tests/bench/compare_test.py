#!/usr/bin/env python3
# tests/bench/compare_test.py
# bench/peers/compare.py on the CPU, at small sizes: who is wrong is refused, what is cut off is resumed, and Keyhole stands
# beside the others. Needs PyTorch, and for Keyhole's own part its Python package; without them the tests say so.
import contextlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))

try:
    import agreement
    import attention
    import compare
    import timing
    import torch
    from cases import Case
    from torch.nn.attention.flex_attention import create_block_mask
except ImportError:
    torch = None


def is_here(*modules):
    try:
        return all(importlib.util.find_spec(module) for module in modules)
    except ImportError:
        return False


KEYHOLE_IS_HERE = torch is not None and is_here("keyhole", "keyhole.torch_attention")
CASES = """\
dense-tiny    1 2 256 32 f32  dense
causal-tiny   1 2 256 32 f32  causal
window-tiny   2 2 384 32 bf16 causal & (window(63) | sinks(16))
memory-tiny   1 2 256 32 f32  causal
"""
OWN_CASES = """\
own-random-tiny    1 2 512 32 f32  random(128, 2, 1)
own-repeated-tiny  1 2 384 32 bf16 repeated(192, 96, random(1, 48, 1))
own-padded-nan     1 2 256 32 bf16 ~sinks(1)
"""


@unittest.skipUnless(torch, "PyTorch is not installed")
class Agreement(unittest.TestCase):
    def setUp(self):
        self.problem = attention.Problem(Case("x", 1, 2, 256, 32, "f32", "causal & window(63)"), "cpu")
        self.agreement = agreement.Agreement(self.problem)
        self.agreement.check("math", self.made("math"))

    def made(self, name):
        return attention.ATTENTIONS[name](self.problem)

    def test_who_computes_the_same_passes(self):
        self.agreement.check("naive", self.made("naive"))

    def test_another_mask_is_refused(self):
        other = attention.Problem(self.problem.case._replace(pattern="causal & window(62)"), "cpu")
        with self.assertRaisesRegex(attention.Refused, "^out is wrong by"):
            self.agreement.check("naive", attention.ATTENTIONS["naive"](other))

    def test_a_wrong_gradient_is_refused_though_the_output_is_right(self):
        naive = self.made("naive")

        def without_some_gradients(q, k, v):
            v = v.clone()
            if v.requires_grad:
                v.register_hook(lambda dv: dv * (torch.arange(256)[:, None] != 200))
            return naive(q, k, v)

        with self.assertRaisesRegex(attention.Refused, "^dv differs from that of math"):
            self.agreement.check("naive", without_some_gradients)

    def test_nan_is_refused(self):
        naive = self.made("naive")
        with self.assertRaises(attention.Refused):
            self.agreement.check("naive", lambda q, k, v: naive(q, k, v) * float("nan"))

    def test_attention_without_a_gradient_is_checked_by_its_output(self):
        naive = self.made("naive")
        self.agreement.check("other", lambda q, k, v: naive(q.detach(), k.detach(), v.detach()))

    @unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
    def test_keyhole_agrees_and_its_plan_keeps_the_pairs(self):
        for name in ("keyhole", "deterministic"):
            self.agreement.check(name, self.made(name))
            self.assertEqual(self.problem.notes[name]["pairs"], self.problem.pairs)


@unittest.skipUnless(torch, "PyTorch is not installed")
class Timing(unittest.TestCase):
    def test_a_record_has_all_timings_of_both_passes(self):
        problem = attention.Problem(Case("x", 1, 1, 128, 16, "f32", "causal"), "cpu")
        record = timing.measure(problem, attention.ATTENTIONS["naive"](problem), timing.Timer("cpu"))
        for operation in ("forward", "backward"):
            for field in ("ms", "paused_ms", "waited_ms", "host_us"):
                self.assertGreater(record[f"{operation}_{field}"], 0, (operation, field))

    def test_attention_without_a_gradient_has_no_backward_time(self):
        problem = attention.Problem(Case("x", 1, 1, 128, 16, "f32", "causal"), "cpu")
        record = timing.measure(problem, lambda q, k, v: v.detach(), timing.Timer("cpu"))
        self.assertNotIn("backward_ms", record)
        self.assertIn("why_no_backward", record)

    def test_the_tiles_that_are_counted_are_those_that_flex_finds(self):
        problem = attention.Problem(Case("x", 1, 1, 512, 16, "f32", "bigbird(128, 1, 1, 1, 1)"), "cpu")
        found = create_block_mask(lambda batch, head, q, k: problem.pattern.allows(q, k), None, None, 512, 512, device="cpu")
        self.assertTrue(torch.equal(found.to_dense()[0, 0] > 0, problem.counts > 0))


class Gpu:
    """Stands for torch.cuda: a clock in ms that only what is launched moves."""

    def __init__(self):
        self.now, self.holds, self.cleared = 0.0, [], 0

    def _sleep(self, cycles):
        self.holds.append(cycles / timing.CYCLES_PER_MS)
        self.now += self.holds[-1]

    def synchronize(self):
        pass

    def Event(self, enable_timing):
        event = unittest.mock.Mock()
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda other: other.at - event.at
        return event


@unittest.skipUnless(torch, "PyTorch is not installed")
class TimingOnTheGpu(unittest.TestCase):
    """The calls take as long as `durations` say, one after the other; the last goes on for ever."""

    def times(self, *durations, **options):
        gpu, calls = Gpu(), itertools.chain(durations, itertools.repeat(durations[-1]))

        def call():
            gpu.now += next(calls)

        timer = timing.Timer("cpu", pause_s=0, **options)
        timer.device, timer.scratch = "cuda", unittest.mock.Mock(zero_=lambda: self.clear(gpu))
        with unittest.mock.patch.object(timing.torch, "cuda", gpu):
            return timer.times(call), gpu

    def clear(self, gpu):
        gpu.now += 1000
        gpu.cleared += 1

    def test_medians_are_of_calls_alone_after_those_that_warm_up(self):
        found, gpu = self.times(9, 9, 9, 9, 1, 2, 6, 3, 4, 5, repeats=3)
        self.assertEqual((found["ms"], found["paused_ms"], found["runs"]), (2, 4, 3))
        self.assertEqual(found["range_ms"], [1, 6])
        self.assertEqual(gpu.cleared, 1 + 3 + 3)
        self.assertEqual(len(gpu.holds), 1 + 3)
        self.assertTrue(all(ms >= 1 for ms in gpu.holds))

    def test_long_calls_are_repeated_less(self):
        self.assertEqual(self.times(150.0, repeats=15)[0]["runs"], timing.LONG_REPEATS)


@unittest.skipUnless(torch, "PyTorch is not installed")
class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "cases.txt").write_text(CASES)

    def run_it(self, *words):
        """(status, what it printed)."""
        told = io.StringIO()
        options = ["--device", "cpu", "--case-file", str(self.folder / "cases.txt"), "--out", str(self.folder)]
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), warnings.catch_warnings(action="ignore"):
            try:
                status = compare.main([*options, *words])
            except SystemExit as error:
                status = error.code
        return status, told.getvalue()

    def timed(self):
        lines = [json.loads(line) for line in (self.folder / "records.jsonl").read_text().splitlines()]
        return [(line["case"], line["who"]) for line in lines if "forward_ms" in line]

    def test_what_is_cut_off_is_resumed_and_nothing_is_timed_twice(self):
        peers = ("--who", "math,naive")
        status, told = self.run_it(*peers, "--seconds", "0")
        self.assertEqual(status, 0, told)
        self.assertIn("4 of 4 cases are not done", told)
        self.assertEqual(self.timed(), [])
        self.run_it(*peers, "--resume", "--cases", "causal-tiny")
        self.assertEqual(self.timed(), [("causal-tiny", "math")])
        status, told = self.run_it(*peers, "--resume")
        self.assertEqual(status, 0, told)
        self.assertNotIn("not done", told)
        expected = ["causal-tiny", "dense-tiny", "window-tiny", "memory-tiny"]
        self.assertEqual(self.timed(), [*((name, "math") for name in expected), ("memory-tiny", "naive")])
        self.assertIn("MATH", (self.folder / "tables.txt").read_text())

    def test_who_fails_is_recorded_and_not_asked_again_and_the_others_are_timed(self):
        asked = []

        def fail(problem):
            asked.append(problem.case.name)
            raise RuntimeError("out of memory\nand a page more")

        with unittest.mock.patch.dict(compare.ATTENTIONS, {"fa2": fail}):
            for words in (("--who", "fa2,math"), ("--who", "fa2,math,flex", "--resume")):
                status, told = self.run_it(*words, "--cases", "causal-tiny")
                self.assertEqual(status, 1, told)
                self.assertIn("fa2 on causal-tiny: out of memory", told)
        self.assertEqual(asked, ["causal-tiny"])
        self.assertEqual([who for _, who in self.timed()], ["math", "math", "flex"])
        self.assertRegex((self.folder / "tables.txt").read_text(), r"FA2 +all +out of memory +causal-tiny")

    def status_of(self, maker, *words, cases="causal-tiny"):
        """With `maker` for fa2; math stands for Keyhole, whose package need not be there."""
        made = {"keyhole": compare.ATTENTIONS["math"], "fa2": maker}
        with (
            unittest.mock.patch.dict(compare.ATTENTIONS, made),
            unittest.mock.patch.object(compare, "BY_DEFAULT", ["keyhole", "fa2", "math"]),
            unittest.mock.patch.object(attention, "import_keyhole"),
        ):
            return self.run_it("--cases", cases, *words)

    def test_who_is_wrong_fails_the_run_whether_named_or_not(self):
        def wrong(problem):
            return lambda q, k, v: 2 * compare.ATTENTIONS["math"](problem)(q, k, v)

        for words in ((), ("--who", "math,fa2")):
            status, told = self.status_of(wrong, *words)
            self.assertEqual(status, 1, told)
            self.assertRegex(told, "fa2 on causal-tiny: out is wrong by")

    def test_who_cannot_run_fails_the_run_where_it_was_named(self):
        def broken(problem):
            raise RuntimeError("no driver")

        for words, want in (((), 0), (("--who", "fa2,math"), 1)):
            status, told = self.status_of(broken, *words)
            self.assertEqual(status, want, told)
            self.assertEqual("fa2 on causal-tiny: no driver" in told, want == 1, told)

    def test_who_does_not_take_a_case_fails_the_run_only_where_it_takes_none(self):
        def plain_only(problem):
            if problem.case.name != "causal-tiny":
                raise attention.Refused("takes no such pattern")
            return compare.ATTENTIONS["math"](problem)

        for words, cases, want in (
            ((), "window-tiny", 0),
            (("--who", "fa2"), "causal-tiny,window-tiny", 0),
            (("--who", "fa2"), "window-tiny", 1),
        ):
            status, told = self.status_of(plain_only, *words, cases=cases)
            self.assertEqual(status, want, told)
        self.assertIn("fa2 takes none of the cases: takes no such pattern", told)

    def test_a_backend_without_a_kernel_for_the_case_does_not_take_it(self):
        problem = attention.Problem(Case("x", 1, 1, 128, 16, "f32", "causal"), "cpu")
        error = RuntimeError("No available kernel. Aborting execution.")
        with unittest.mock.patch.object(attention, "scaled_dot_product_attention", side_effect=error):
            with self.assertRaisesRegex(attention.Refused, "^No available kernel"):
                attention.ATTENTIONS["fa2"](problem)(*problem.inputs)

    def test_the_help_tells_the_exit_status(self):
        status, told = self.run_it("--help")
        self.assertEqual(status, 0)
        self.assertIn("exit status:", told)

    def test_dram_traffic_is_told_call_by_call(self):
        rows = "".join(f'echo \'"{2 * i}","spin_kernel","0","0"\'\necho \'"{2 * i + 1}","k","{i}","10"\'\n' for i in range(4))
        header = '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"'
        ncu = self.folder / "ncu"
        ncu.write_text(f"#!/bin/sh\necho '{header}'\n{rows}")
        ncu.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            for words in ((), ("--resume",)):
                status, told = self.run_it("--who", "naive,fa2,math", "--cases", "memory-tiny", "--dram", *words)
                self.assertEqual(status, 0, told)
        found = compare.Log(self.folder / "records.jsonl", True)
        case = found.cases()["memory-tiny"]
        calls = [("naive", "forward"), ("naive", "backward"), ("fa2", "forward"), ("fa2", "backward")]
        self.assertEqual([case.value(who, f"{operation}_dram_bytes") for who, operation in calls], [10, 11, 12, 13])
        self.assertEqual(sum("forward_dram_bytes" in line for line in found.lines), 2)

    def test_without_the_package_it_says_the_way_out(self):
        with unittest.mock.patch.dict(sys.modules, {"keyhole": None}):
            status, told = self.run_it()
        self.assertEqual(status, 2)
        self.assertIn("pip install", told)

    def test_who_is_not_known_is_refused(self):
        status, told = self.run_it("--who", "fa4")
        self.assertEqual(status, 2)
        self.assertIn("unknown fa4", told)

    def test_a_forward_pass_alone_has_no_time_of_the_other(self):
        self.run_it("--who", "math", "--cases", "causal-tiny", "--passes", "forward")
        case = compare.Log(self.folder / "records.jsonl", True).cases()["causal-tiny"]
        self.assertGreater(case.value("math", "forward_ms"), 0)
        self.assertIsNone(case.value("math", "backward_ms"))

    @unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
    def test_a_backend_is_asked_where_a_bar_judges_it(self):
        (self.folder / "cases.txt").write_text("dense-4k 1 2 256 32 f32 dense\ncausal-64k 1 2 256 32 f32 causal\n")
        with unittest.mock.patch.dict(compare.ATTENTIONS, {"sm80": compare.ATTENTIONS["naive"]}):
            status, told = self.run_it("--who", "sm80,math")
        self.assertEqual(status, 0, told)
        self.assertEqual(self.timed(), [("dense-4k", "sm80"), ("dense-4k", "math"), ("causal-64k", "math")])

    @unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
    def test_a_backend_that_is_not_there_says_so_and_the_others_are_timed(self):
        (self.folder / "cases.txt").write_text("dense-4k 1 2 256 32 bf16 dense\n")
        status, told = self.run_it("--who", "keyhole,sm80")
        self.assertEqual(status, 1, told)
        self.assertRegex(told, "sm80 on dense-4k: .*sm80")
        self.assertEqual(self.timed(), [("dense-4k", "keyhole")])
        why = compare.Log(self.folder / "records.jsonl", True).cases()["dense-4k"].value("sm80", "why_not")
        self.assertIn("sm80", why)

    def test_nobody_but_keyhole_is_asked_for_its_own_cases(self):
        (self.folder / "cases.txt").write_text("own-tiny 1 2 256 32 f32 causal\n")
        status, told = self.run_it("--who", "math,flex")
        self.assertEqual(status, 0, told)
        self.assertEqual(self.timed(), [])

    @unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
    def test_keyhole_is_right_on_its_own_cases(self):
        (self.folder / "cases.txt").write_text(OWN_CASES)
        status, told = self.run_it("--who", "keyhole,math")
        self.assertEqual(status, 0, told)
        self.assertEqual(len(self.timed()), 3, told)
        for case in compare.Log(self.folder / "records.jsonl", True).cases().values():
            self.assertTrue(case.same_pairs())
            self.assertGreaterEqual(case.value("keyhole", "visited_pairs"), case.pairs)

    @unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
    def test_keyhole_stands_beside_the_others(self):
        status, told = self.run_it("--who", "keyhole,math,flex,naive")
        self.assertEqual(status, 0, told)
        self.assertEqual([who for _, who in self.timed()].count("keyhole"), 4)
        self.assertIn("Keyhole", (self.folder / "tables.txt").read_text())


@unittest.skipUnless(KEYHOLE_IS_HERE, "the Python package keyhole is not installed")
class OtherScripts(unittest.TestCase):
    """Those that need no list of cases, at small sizes."""

    def run_it(self, script, *words):
        command = [sys.executable, ROOT / "bench/peers" / script, "--device", "cpu", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_every_kind_of_call_is_timed(self):
        told = self.run_it("call_overhead.py", "--runs", "1", "--calls", "1")
        self.assertEqual(told.count(" us, CPU "), 10)

    def test_entmax_is_right_before_it_is_timed(self):
        names = ["softmax", "alpha 1.5", "alpha 1.5 in order", "alpha 1.5 adversarial", "alpha 1.5 top 8", "alpha 1.25", "alpha 1.5 fp32"]
        told = self.run_it("splash.py", "--len", "256", "--cases", ",".join(names))
        self.assertNotIn("WRONG", told)
        self.assertTrue(all(f"\n{name} " in told for name in names), told)


@unittest.skipUnless(is_here("matplotlib"), "matplotlib is not installed")
class Figure(unittest.TestCase):
    def test_the_record_of_the_repository_gives_it(self):
        sys.path.insert(0, str(ROOT / "bench"))
        import plot

        with tempfile.TemporaryDirectory() as folder:
            records = plot.read(sorted((ROOT / "records/gpu").glob("*-everybody.jsonl")))
            (drawn,) = plot.draw_all(records, pathlib.Path(folder))
            self.assertEqual(drawn.name, "peers_length.png")
            self.assertGreater(drawn.with_suffix(".svg").stat().st_size, 10_000)


if __name__ == "__main__":
    unittest.main()
