"""The limits record, the table, the products, and the reading of a user's target."""

from __future__ import annotations

import dataclasses

import pytest

from tunesmith.hw.errors import TunesmithError
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
HINTS = {
    "h20": "h200",
    "sm_91": "sm_90",
    "sm_80a": "sm_80",
    "sm_90f": "sm_90",
    "rtx4080": "rtx4090",
    "zzz": "TOML",
    "mi300a": "mi300x",
}


@pytest.mark.parametrize(("text", "arch"), ARCHITECTURES.items())
def test_the_same_target_by_many_names(text, arch):
    assert resolve_target(text).arch == arch


@pytest.mark.parametrize(("text", "hint"), HINTS.items())
def test_an_unknown_target_lists_near_ones(text, hint):
    with pytest.raises(TunesmithError, match=hint):
        resolve_target(text)


def _file(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_overrides_its_base(tmp_path):
    path = _file(tmp_path, 'base = "h200"\nname = "half"\nsm_count = 66\nmax_grid_dims = [1024, 1, 1]\n')
    half = resolve_target(str(path))
    changed = {"name": "half", "sm_count": 66, "max_grid_dims": (1024, 1, 1), "source": half.source}
    assert half == dataclasses.replace(resolve_target("h200"), **changed)
    assert half.source.startswith(f"file {path}")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert resolve_target(str(path)) == half


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
    ],
)
def test_mistakes_in_a_file_name_the_file_and_the_key(tmp_path, text, said):
    path = _file(tmp_path, text)
    with pytest.raises(TunesmithError) as caught:
        resolve_target(str(path))
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_a_missing_file_and_a_file_that_is_not_text(tmp_path):
    with pytest.raises(TunesmithError, match="cannot be read"):
        resolve_target(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TunesmithError, match="UTF-8"):
        resolve_target(str(tmp_path / "bad.toml"))
