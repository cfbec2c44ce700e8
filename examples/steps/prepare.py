"""Write the codes of a text's characters to data/train.bin and data/val.bin, for before.py and train.py.

The text is the GNU General Public License that every Debian machine has, unless a file is given.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TEXT = Path("/usr/share/common-licenses/GPL-3")


def main() -> None:
    text = Path(sys.argv[1] if len(sys.argv) > 1 else TEXT).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(character) for character in text], dtype=np.uint16)
    Path("data").mkdir(exist_ok=True)
    first = len(codes) * 9 // 10
    codes[:first].tofile("data/train.bin")
    codes[first:].tofile("data/val.bin")
    print(f"{first} characters to train on, {len(codes) - first} to validate, {len(alphabet)} different ones")


if __name__ == "__main__":
    main()
