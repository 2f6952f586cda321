"""Finds the limits a user means: a compute capability, a product, or a TOML file of their own.

Owns the reading of such texts and files, so that a search can be prepared on a machine which does not
have the device. It does not look at the machine: that is `probe`.

The TOML file::

    base = "sm_90"          # required: what the file starts from (a capability or a product)
    name = "half an H200"   # any field of DeviceLimits may follow, in bytes, Hz and bytes/s
    sm_count = 66
    shared_per_sm = 233_472

Every other key must be a field of `tunesmith.hw.limits.DeviceLimits`; an unknown one is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from pathlib import Path
from typing import Final

from tunesmith.hw.errors import TunesmithError, UnknownTarget, named_path
from tunesmith.hw.limits import DeviceLimits, check_field
from tunesmith.hw.targets.compute_capability import CAPABILITIES, arch_name, limits_of
from tunesmith.hw.targets.products import PRODUCT_NAMES, product_limits

_ARCH: Final = re.compile(r"(?:sm_?)?(?P<major>\d{1,2})\.?(?P<minor>\d)(?P<suffix>[af]?)", re.IGNORECASE)
#: Feature suffixes of the compiler: ``a`` exists from 9.0 on, ``f`` from 10.0 on (nvcc, "GPU Feature List").
_FIRST_MAJOR_WITH_SUFFIX: Final = {"": 0, "a": 9, "f": 10}
_OTHERS: Final = re.compile(
    r"amd|ati\b|radeon|instinct|rx[\s_-]?\d|mi[\s_-]?\d{2,3}|gfx\d|rdna|cdna|navi|vega|"
    r"intel|arc\b|iris|xe\b|pvc|gaudi|apple|m[1-9]\b|adreno|mali|tpu",
    re.IGNORECASE,
)
"""How the names of other vendors' devices begin."""
# These only repeat the vendor, so that the name a driver prints is understood as well.
_VENDOR_WORDS: Final = re.compile(r"nvidia|geforce|tesla|[\s_-]")


def resolve_target(text: str) -> DeviceLimits:
    """Return the limits that `text` names: ``sm_90``, ``9.0``, ``sm_90a``, ``h200``, or ``path/to/gpu.toml``.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla do not matter in a product's name.
    Raises UnknownTarget, listing near matches, or saying what is wrong in the file.
    """
    wanted = text.strip()
    if wanted.lower().endswith(".toml") or "/" in wanted or "\\" in wanted:
        return _from_file(named_path("--target", wanted))
    found = _from_table(wanted)
    if found is None:
        raise UnknownTarget(_unknown(wanted))
    return found


def _from_table(text: str) -> DeviceLimits | None:
    match = _ARCH.fullmatch(text)
    if match is not None:
        capability = f"{match['major']}.{match['minor']}"
        suffix = match["suffix"].lower()
        if capability in CAPABILITIES and int(match["major"]) >= _FIRST_MAJOR_WITH_SUFFIX[suffix]:
            limits = limits_of(capability)
            return dataclasses.replace(limits, arch=limits.arch + suffix) if suffix else limits
        return None
    # The name that the driver prints is as good as ours: both find the row.
    by_squeezed = {_squeeze(product_limits(key).name): key for key in PRODUCT_NAMES}
    by_squeezed |= {_squeeze(key): key for key in PRODUCT_NAMES}
    key = by_squeezed.get(_squeeze(text))
    return None if key is None else product_limits(key)


def _squeeze(text: str) -> str:
    return _VENDOR_WORDS.sub("", text.lower())


def _unknown(text: str) -> str:
    architectures = [arch_name(capability) for capability in CAPABILITIES]
    if _ARCH.fullmatch(text):
        return f"No target is called '{text}': the architectures known are {', '.join(architectures)}."
    if _OTHERS.match(text):
        return (
            f"No target is called '{text}': targets are NVIDIA GPUs alone, such as h200; a device of another vendor is "
            "tuned on where it is, through OpenCL."
        )
    known = [*architectures, *PRODUCT_NAMES]
    near = difflib.get_close_matches(text.lower(), known, n=4, cutoff=0.5)
    if near and any(letter.isalnum() for letter in text):
        return f"No target is called '{text}': did you mean {' or '.join(near)}?"
    names = ", ".join([*architectures, *PRODUCT_NAMES])
    return f"No target is called '{text}': name one of {names}, or the path of a TOML file."


def _from_file(path: Path) -> DeviceLimits:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UnknownTarget(
            f"The target file {path} cannot be read ({error.strerror}): give the path of a TOML file, "
            "or a name such as sm_90 or h200."
        ) from error
    except UnicodeDecodeError as error:
        raise UnknownTarget(f"The target file {path} is not UTF-8 text: save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UnknownTarget(f"The target file {path} is not valid TOML ({error}): fix that line.") from error
    base = data.pop("base", None)
    if not isinstance(base, str):
        raise UnknownTarget(f"The target file {path} lacks the key 'base': begin with a line such as base = \"sm_90\".")
    limits = _from_table(base.strip())
    if limits is None:
        raise UnknownTarget(f"The target file {path} has base = '{base}', which is unknown: {_unknown(base)}")
    data.setdefault("source", f"file {path}, over {limits.source}")
    try:
        where = f"The target file {path}"
        values = {key: check_field(key, value, where=where) for key, value in data.items()}
    except TunesmithError as error:
        raise UnknownTarget(str(error)) from error
    return dataclasses.replace(limits, **values)
