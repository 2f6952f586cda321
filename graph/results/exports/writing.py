"""`tunesmith export`: one of the forms, written into a folder of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tunesmith.graph.outputs import require_new_folder
from tunesmith.graph.results.exports.c_forms import write_header, write_opencl
from tunesmith.graph.results.exports.measurements import write_results
from tunesmith.graph.results.exports.package import ExportError, Package
from tunesmith.graph.results.exports.python_forms import write_cupy, write_hf_kernels, write_torch
from tunesmith.graph.settings import as_path

FORMS: Mapping[str, Callable[[Package, Path], None]] = {
    "torch": write_torch,
    "cupy": write_cupy,
    "header": write_header,
    "hf-kernels": write_hf_kernels,
    "opencl": write_opencl,
    "t4": write_results,
}


def export_run(run: str | Path, form: str, out: str | Path | None = None) -> Path:
    """Writes the winners of the run in the folder `run` in the form of a name, and gives the folder.

    out: a folder that does not exist yet or is empty; left out, `exports/<form>` in the run's own, which is replaced.
    Raises `TunesmithError`; then nothing is left behind.
    """
    if form not in FORMS:
        raise ExportError(f"--as: there is no form '{form}'; choose one of {', '.join(FORMS)}.")
    run = as_path(run, "run")
    folder = run / "exports" / form if out is None else as_path(out, "--out")
    if out is not None:
        require_new_folder(folder, "--out")
    package = Package(run)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            complete = Path(made) / "export"
            FORMS[form](package, complete)
            if folder.exists():
                shutil.rmtree(folder)
            complete.rename(folder)
    except OSError as error:
        raise ExportError(f"--out: {folder} cannot be written ({error.strerror}); choose another.") from error
    return folder
