"""The limits of devices: the table, products, a user's target; occupancy, with NVIDIA's own calculator as judge;
roofs."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits, occupancy
from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE, Roofline
from tunesmith.hw.targets import AMD, CAPABILITIES, PRODUCTS, resolve_target

KIB = 1024


@pytest.mark.parametrize("text", [*CAPABILITIES, *PRODUCTS])
def test_every_row_adds_up_and_names_its_source(text):
    limits = resolve_target(text)
    assert limits.source.startswith("table: CUDA C++ Programming Guide")
    assert limits.max_threads_per_sm == limits.max_warps_per_sm * limits.warp_size
    assert limits.shared_per_block_optin + limits.shared_reserved_per_block == limits.shared_per_sm


@pytest.mark.parametrize("text", AMD)
def test_amd_rows_add_up_and_are_for_triton(text):
    limits = resolve_target(text)
    assert (limits.backend, limits.source.startswith("table: AMD GPU specifications")) == ("triton", True)
    assert limits.max_threads_per_sm == limits.max_warps_per_sm * limits.warp_size == 2048
    # The register file of a compute unit (two, in RDNA's WGP mode) in the ROCm documentation: 512 and 384 KiB.
    assert limits.registers_per_sm * 4 == (2 * 384 * KIB if text == "gfx1100" else 512 * KIB)
    assert (limits.shared_per_block_optin, limits.register_allocation_unit % limits.warp_size) == (64 * KIB, 0)


ARCHITECTURES = {
    "sm_90": "sm_90", "9.0": "sm_90", "SM90": "sm_90", "sm_90a": "sm_90a", "sm_100f": "sm_100f", "12.1": "sm_121",
    "H200": "sm_90", "NVIDIA GeForce RTX 4090": "sm_89", "rtx-3090": "sm_86", "NVIDIA H100 80GB HBM3": "sm_90",
    " a100 ": "sm_80", "gfx942": "gfx942", "GFX1100": "gfx1100", "AMD Instinct MI300X": "gfx942", "mi300x": "gfx942",
}  # fmt: skip
HINTS = {"h20": "h200", "sm_91": "sm_90", "sm_80a": "sm_80", "sm_90f": "sm_90", "rtx4080": "rtx4090", "zzz": "TOML"}
HINTS |= {"mi300a": "mi300x"}


@pytest.mark.parametrize(("text", "arch"), ARCHITECTURES.items())
def test_the_same_target_by_many_names(text, arch):
    assert resolve_target(text).arch == arch


@pytest.mark.parametrize(("text", "hint"), HINTS.items())
def test_an_unknown_target_lists_near_ones(text, hint):
    with pytest.raises(TunesmithError, match=hint):
        resolve_target(text)


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("latin-1"))
    return path


def test_a_file_overrides_its_base(tmp_path):
    text = 'base = "h200"\nname = "half"\nsm_count = 66\nmax_grid_dims = [1024, 1, 1]\n'
    path = write(tmp_path, text)
    half = resolve_target(str(path))
    changed = {"name": "half", "sm_count": 66, "max_grid_dims": (1024, 1, 1), "source": half.source}
    assert half == dataclasses.replace(resolve_target("h200"), **changed) and half.source.startswith(f"file {path}")
    assert resolve_target(str(write(tmp_path, "\xef\xbb\xbf" + text))) == half
    with pytest.raises(TunesmithError, match="cannot be read"):
        resolve_target(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sm_count = 3\n", "lacks the key 'base'"),
        ('base = "sm_90"\nclock_hz = "fast"\n', "'clock_hz': write a positive number"),
        ('base = "sm_91"\n', "sm_90"),
        ('base = "sm_90"\nsms = 3\n', "unknown key 'sms'"),
        ('base = "sm_90"\nsm_count = "many"\n', "'sm_count': write a positive whole number"),
        ('base = "sm_90"\nsm_count = true\n', "'sm_count': write a positive whole number"),
        ('base = "sm_90"\nclock_hz = -1\n', "'clock_hz': write a positive number"),
        ('base = "sm_90"\nmax_block_dims = [1, 2]\n', "three"),
        ('base = "sm_90"\nbackend = "metal"\n', "'cuda', 'triton' or 'opencl'"),
        ('base = "sm_90\n', "not valid TOML"),
        ("\xff\xfe", "UTF-8"),
    ],
)
def test_mistakes_in_a_file_name_the_file_and_the_key(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(TunesmithError) as caught:
        resolve_target(str(path))
    assert str(path) in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "blocks", "limiter"),
    [
        # What limits NVIDIA's; how many blocks that makes, its own calculator says below.
        # 25 warps take 64,000 registers, but are counted as 28: 71,680.
        ("9.0", 800, 80, 0, 0, "registers_per_block"),
        ("9.0", 32, 16, 0, 32, "blocks"),
        ("9.0", 32, 256, 0, 0, "registers_per_thread"),
        # 228 KiB an SM, each block 1 KiB more than it asks for.
        ("9.0", 128, 32, 227 * KIB, 1, "shared"),
        ("9.0", 128, 32, 227 * KIB + 1, 0, "shared_per_block"),
        # CDNA 3: 512 registers of a SIMD in eights, 8 waves of 64 on each of four SIMDs.
        ("gfx942", 256, 64, 0, 8, "threads"),
        ("gfx942", 256, 65, 0, 7, "registers"),
        ("gfx942", 1024, 129, 0, 0, "registers_per_block"),
        ("gfx942", 256, 64, 64 * KIB, 1, "shared"),
        ("gfx942", 64 * 17, 64, 0, 0, "threads_per_block"),
        # RDNA 3: 1,536 registers in multiples of 24, 16 waves of 32 on each of four SIMDs, 128 KiB of LDS.
        ("gfx1100", 128, 96, 0, 16, "threads"),
        ("gfx1100", 128, 97, 0, 12, "registers"),
        ("gfx1100", 1024, 193, 0, 0, "registers_per_block"),
        ("gfx1100", 128, 96, 64 * KIB, 2, "shared"),
    ],
)
def test_known_values(target, threads, registers, shared, blocks, limiter):
    result = occupancy((CAPABILITIES | AMD)[target], threads=threads, registers=registers, shared=shared)
    assert (result.blocks_per_sm, result.limiter) == (blocks, limiter)


def test_a_device_without_limits_per_sm_only_checks_the_block():
    most = {"max_threads_per_block": 4096, "max_block_dims": (4096, 4096, 4096), "shared_per_block": KIB}
    cpu = DeviceLimits(name="a CPU", backend="opencl", kind="cpu", arch="OpenCL 3.0", **most)
    fits = occupancy(cpu, threads=4096, registers=255, shared=KIB)
    assert (fits.blocks_per_sm, fits.limiter, fits.fraction) == (1, None, None)
    assert occupancy(cpu, threads=4097, registers=0, shared=0).limiter == "threads_per_block"
    assert occupancy(cpu, threads=1, registers=0, shared=KIB + 1).limiter == "shared_per_block"


def test_nvidias_calculator_agrees_on_every_capability(tmp_path, cuda_include):
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    source = Path(__file__).with_name("judge_occupancy.cpp")
    command = [compiler, "-w", f"-I{cuda_include}", source, "-o", "judge"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    rng = np.random.default_rng(0)
    lines, ours = [], []
    for capability, limits in CAPABILITIES.items():
        count = 3000
        threads, registers = rng.integers(1, 1056, count), rng.integers(0, 256, count)
        # Half of the points without shared memory, so that the other resources bind often enough.
        shared = rng.integers(0, limits.shared_per_block_optin + 300, count) * rng.integers(0, 2, count)
        for t, r, s in zip(threads, registers, shared, strict=True):
            ours.append(occupancy(limits, threads=int(t), registers=int(r), shared=int(s)).blocks_per_sm)
        device = (
            f"{capability.replace('.', ' ')} {limits.max_threads_per_sm} {limits.shared_per_sm} "
            f"{limits.shared_per_block_optin} {limits.shared_reserved_per_block}"
        )
        lines += [f"{device} {t} {r} {s}" for t, r, s in zip(threads, registers, shared, strict=True)]
    told = subprocess.run([tmp_path / "judge"], input="\n".join(lines), stdout=-1, text=True, check=True, timeout=60)
    theirs = map(int, told.stdout.split())
    assert [(line, a, b) for line, a, b in zip(lines, ours, theirs, strict=True) if a != b] == []


MIB = 2**20
#: Measured on an H200: copy, bytes read plus written.
H200 = Roofline(
    bandwidth=((2048 * MIB, 4.15e12), (64 * MIB, 3.88e12), (256 * MIB, 4.09e12)), peak_flops={"float16": 800e12}
)


def test_which_roof_binds_unless_it_was_beaten():
    assert [size // MIB for size, _ in H200.bandwidth] == [64, 256, 2048] and H200.peak_bandwidth == 4.15e12
    for moved, flops, dtype, bound in (
        (64 * MIB, 1e6, "float16", "memory"),
        (64, 1e12, "float16", "compute"),
        (64 * MIB, 1e6, "float32", "unknown"),
        (64 * MIB, 0, "float32", "memory"),
    ):
        assert H200.bound(moved, flops, dtype) == bound
    assert Roofline().bound(1, 1, "float32") == "unknown" and Roofline().floor_seconds(64) is None
    assert H200.floor_seconds(64, 1e12, "float16") == pytest.approx(1e12 / 800e12)
    assert Roofline(peak_flops={"x": 2.0}).floor_seconds(64, 4, "x") == 2.0
    roofs, work = Roofline(((64 * MIB, 20e9),), {"float32": 1e9}), (64 * MIB, 64 * MIB, "float32")
    assert roofs.bound(*work) == "compute"
    kept, (reason,) = roofs.without_beaten({"the baseline on 64x64": (5e-3, work)})
    assert kept.bound(*work) == "unknown" and "13.4 GFLOP/s" in reason and "is not used" in reason
    for bandwidth, said in ((((0, 1.0),), "positive"), (((8, 1.0), (8, 2.0)), "one bandwidth for each size")):
        with pytest.raises(ValueError, match=said):
            Roofline(bandwidth=bandwidth)


@given(st.floats(0, 1e15), st.floats(0, 1e18))
def test_more_work_never_has_a_lower_floor_and_both_roofs_hold(moved, flops):
    floor = H200.floor_seconds(moved, flops, "float16")
    assert floor is not None and floor >= flops / 800e12 and floor >= moved / 4.15e12 * (1 - 1e-12)
    assert H200.floor_seconds(moved * 1.5 + 1, flops, "float16") >= floor


@given(st.floats(1e-6, 1e-2), st.floats(1.0, 1e9), st.floats(0.0, 1e12))
def test_a_roof_that_a_kernel_beats_is_left_out_and_no_other(seconds, moved, flops):
    roofs = Roofline(((64 * MIB, 20e9),), {"float32": 50e9, "float64": 25e9}, 1e-6)
    kept, reasons = roofs.without_beaten({"the baseline on 64x64": (seconds, (moved, flops, "float32"))})
    assert bool(kept.bandwidth) == (moved / 20e9 <= MAX_ROOFLINE_SHARE * seconds)
    assert ("float32" in kept.peak_flops) == (flops / 50e9 <= MAX_ROOFLINE_SHARE * seconds)
    assert kept.peak_flops["float64"] == 25e9 and kept.launch_seconds == 1e-6
    assert len(reasons) == (not kept.bandwidth) + ("float32" not in kept.peak_flops)
    assert all("the baseline on 64x64" in reason for reason in reasons)
    floor = kept.floor_seconds(moved, flops, "float32")
    assert floor is None or floor <= MAX_ROOFLINE_SHARE * seconds
