"""A run with a scripted model in a process of its own, to be killed: FOLDER LEDGER SLOW. In the question that SLOW
names (such as "round-1.plan.plan") it writes a file FOLDER.asking and then takes its time, before anything is paid."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scripted_models import DATA, SOURCE, Scripted, branch, explain, plan, template


def main(folder: Path, ledger: Path, slow: str) -> None:
    from tunesmith.graph import resume, tune

    def script(call: Any) -> Any:
        if call.custom_id == slow:
            folder.with_suffix(".asking").touch()
            time.sleep(60)
        if call.role == "template":
            wrong = call.name == "template-2"
            return template(source=(SOURCE.replace("a * x[i]", "x[i]") if wrong else f"// {call.name[:10]}\n{SOURCE}"))
        return {"plan": plan(branch(moves=["one"]), branch(moves=["two"])), "explain": explain()}[call.role]

    models = Scripted(script, ledger)
    if (folder / "journal.sqlite").exists():
        resume(folder, models=models)
    else:
        tune(DATA / "raw_scale_add", run_dir=folder, models=models, backend="opencl", evaluations=9, rounds=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
