# tests/python/test_viz.py
"""keyhole.viz: the picture of a pattern is the pattern, and what is wrong is said."""

import subprocess
import sys

import keyhole
import numpy as np
import pytest


@pytest.fixture
def viz(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    viz = pytest.importorskip("keyhole.viz")
    yield viz
    viz.pyplot.close("all")


def test_picture_is_the_mask(viz):
    pattern = keyhole.per_head("causal & window(3)", "dilated(3)")
    for head in range(2):
        drawn = viz.draw_pattern(pattern, 10, 14, head=head).images[0]
        np.testing.assert_array_equal(drawn.get_array(), pattern.mask(10, 14, head=head))
        assert list(drawn.get_extent()) == [0, 14, 10, 0]  # query 0 above, key 0 left


def test_several_patterns(viz):
    figure = viz.draw_patterns(["causal", "window(2)", "blocks(4)"], 16, columns=2)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["causal", "window(2)", "blocks(4)"]
    figure = viz.draw_patterns({"near": keyhole.window(2)}, 16)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["near"]


def test_times_and_speed_ups(viz):
    times = {"dense": [4.0, 16.0], "window": [2.0, None]}
    lines = {line.get_label(): line.get_ydata() for line in viz.draw_times([8, 16], times).lines}
    np.testing.assert_array_equal(lines["dense"], [4, 16])
    lines = {line.get_label(): line.get_ydata() for line in viz.draw_times([8, 16], times, relative_to="dense").lines}
    np.testing.assert_array_equal(lines["window"], [2, np.nan])
    lines = {line.get_label(): line.get_ydata() for line in viz.draw_times([8, 16], times, relative_to="window").lines}
    np.testing.assert_array_equal(lines["dense"], [0.5, np.nan])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda viz: viz.draw_pattern("causal", 1 << 20), "1048576 x 1048576 pairs"),
        (lambda viz: viz.draw_patterns([], 16), "no patterns"),
        (lambda viz: viz.draw_times([1, 2], {"a": [1.0]}), "a has 1 times for 2 lengths"),
        (lambda viz: viz.draw_times([1], {"a": [1.0]}, relative_to="b"), "relative_to is 'b'"),
    ],
)
def test_errors(viz, call, text):
    with pytest.raises(ValueError, match=text):
        call(viz)


def test_without_matplotlib():
    """The rest of the package does not need it, and the module says what does."""
    code = (
        "import sys; sys.modules['matplotlib'] = None; import keyhole; assert keyhole.causal().count_pairs(2) == 3\n"
        "try:\n    import keyhole.viz\nexcept ImportError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'keyhole[viz]'" in printed
