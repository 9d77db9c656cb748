# bench/peers/bars.py
# Bars and measured cases in, verdicts out: how many times as fast Keyhole, or one of its backends, is, what was asked, and
# whether it is met.
from typing import NamedTuple

from cases import Bar
from records import Measured

NOT_MEASURED = "not measured"


class Verdict(NamedTuple):
    case: Measured
    bar: Bar
    ratio: float | None

    def is_void(self):
        """A time is worth nothing where Keyhole's plan keeps other pairs than the definition of the pattern."""
        return not self.case.same_pairs(self.bar.who)

    def word(self):
        if self.is_void():
            return f"VOID: {self.case.value(self.bar.who, 'pairs'):,} pairs against {self.case.pairs:,}"
        if self.ratio is None:
            return NOT_MEASURED
        return "met" if self.ratio >= self.bar.least else "MISSED"

    def text(self):
        """1.04 (1.00) met; 0.80 (0.85) MISSED."""
        ratio = "" if self.is_void() or self.ratio is None else f"{self.ratio:.2f} "
        return f"{ratio}({self.bar.least:.2f}) {self.word()}"


def judged(cases, bars):
    """A verdict for every bar and every case of the records that it holds for."""
    verdicts = []
    for bar in bars:
        other = cases.get(bar.on)
        for case in [case for name, case in cases.items() if bar.holds_for(name)]:
            is_lost = bar.on and other is None
            ratio = None if is_lost else case.ratio(bar.against, bar.passes, bar.timing, other, bar.per, bar.who)
            verdicts.append(Verdict(case, bar, ratio))
    return verdicts


def counted(verdicts):
    words = [verdict.word() for verdict in verdicts]
    return f"{words.count('met')} of {len(words)} bars met, {words.count(NOT_MEASURED)} not measured"
