"""Says which kernel serves a shape, and how it is launched: python dispatch.py n=1000 T=float32."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from runtime import Kernels, show_choice  # type: ignore[import-not-found]  # noqa: E402

choose = Kernels(HERE).choose

if __name__ == "__main__":
    print(show_choice(HERE, sys.argv[1:]))
