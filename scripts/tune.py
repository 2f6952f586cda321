"""Tunes a kernel as a plain script, for `ray job submit -- python scripts/tune.py TASK ...` and `ray submit`.

The same as `tunesmith tune TASK ...`; attaches to the cluster of RAY_ADDRESS.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # As a job's working directory the repository is not installed; its packages are found from its root.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    # This file's own folder holds modules of the command line that must not be importable by bare names.
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    from tunesmith.cli.main import main

    main(["tune", *sys.argv[1:]])
