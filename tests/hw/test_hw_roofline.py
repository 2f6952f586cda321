"""The roofline: interpolation, floors, and which roof binds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE, Roofline, Timed

MIB = 2**20
#: Measured on an H200: copy, bytes read plus written.
H200 = Roofline(
    bandwidth=((2048 * MIB, 4.15e12), (64 * MIB, 3.88e12), (256 * MIB, 4.09e12)), peak_flops={"float16": 800e12}
)


def test_points_are_sorted_and_the_best_is_the_peak():
    assert [size // MIB for size, _ in H200.bandwidth] == [64, 256, 2048]
    assert H200.peak_bandwidth == 4.15e12
    # silu_and_mul, 4096 x 11008 in half precision: reads two, writes one.
    assert H200.floor_seconds(3 * 4096 * 11008 * 2) == pytest.approx(65e-6, rel=0.03)


def test_which_roof_binds():
    assert H200.bound(64 * MIB, 1e6, "float16") == "memory"
    assert H200.bound(64, 1e12, "float16") == "compute"
    assert H200.bound(64 * MIB, 1e6, "float32") == "unknown"
    assert H200.bound(64 * MIB, 0, "float32") == "memory"
    assert Roofline().bound(1, 1, "float32") == "unknown"
    assert H200.floor_seconds(64, 1e12, "float16") == pytest.approx(1e12 / 800e12)
    assert Roofline().floor_seconds(64) is None
    assert Roofline(peak_flops={"x": 2.0}).floor_seconds(64, 4, "x") == 2.0


@given(st.floats(0, 1e15), st.floats(0, 1e18))
def test_more_work_never_has_a_lower_floor_and_both_roofs_hold(moved, flops):
    floor = H200.floor_seconds(moved, flops, "float16")
    assert floor is not None and floor >= flops / 800e12
    assert floor >= moved / 4.15e12 * (1 - 1e-12)
    assert H200.floor_seconds(moved * 1.5 + 1, flops, "float16") >= floor


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: Roofline(bandwidth=((0, 1.0),)), "positive"),
        (lambda: Roofline(bandwidth=((8, 1.0), (8, 2.0))), "one bandwidth for each size"),
    ],
)
def test_numbers_that_are_no_roof_are_refused(refused, said):
    with pytest.raises(ValueError, match=said):
        refused()


@given(st.floats(1e-6, 1e-2), st.floats(1.0, 1e9), st.floats(0.0, 1e12))
def test_a_roof_that_a_kernel_beats_is_left_out_and_no_other(seconds, moved, flops):
    roofs = Roofline(((64 * MIB, 20e9),), {"float32": 50e9, "float64": 25e9}, 1e-6)
    kept, reasons = roofs.without_beaten([Timed("the baseline on 64x64", seconds, moved, flops, "float32")])
    assert bool(kept.bandwidth) == (moved / 20e9 <= MAX_ROOFLINE_SHARE * seconds)
    assert ("float32" in kept.peak_flops) == (flops / 50e9 <= MAX_ROOFLINE_SHARE * seconds)
    assert kept.peak_flops["float64"] == 25e9 and kept.launch_seconds == 1e-6
    assert len(reasons) == (not kept.bandwidth) + ("float32" not in kept.peak_flops)
    assert all("the baseline on 64x64" in reason for reason in reasons)
    floor = kept.floor_seconds(moved, flops, "float32")
    assert floor is None or floor <= MAX_ROOFLINE_SHARE * seconds


def test_no_bottleneck_is_named_by_a_roof_that_was_beaten():
    roofs = Roofline(((64 * MIB, 20e9),), {"float32": 1e9})
    assert roofs.bound(64 * MIB, 64 * MIB, "float32") == "compute"
    kept, (reason,) = roofs.without_beaten([Timed("the baseline on 64x64", 5e-3, 64 * MIB, 64 * MIB, "float32")])
    assert kept.bound(64 * MIB, 64 * MIB, "float32") == "unknown"
    assert "13.4 GFLOP/s" in reason and "is not used" in reason
