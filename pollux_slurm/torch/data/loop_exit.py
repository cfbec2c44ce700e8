"""Whether a loop was left by `break`, or by an error on its way up.

Both close the loop's generator in the same way, and Python hides the error meanwhile. But the instruction at
which the loop's frame stands tells them apart: `break` and `return` let go of the generator by an instruction
of their own, an error while the instruction is under way that raised it.
"""

from __future__ import annotations

import dis
import sys

# What lets go of a loop's iterator: POP_ITER from Python 3.14 on.
_LETS_GO = ("POP_TOP", "POP_ITER")
# Where a generator stands that is let go of, too: one around ours, as a progress bar's.
_SUSPENDED = ("YIELD_VALUE", "RESUME", "SEND")
# Earlier a signal's handler could raise between two instructions, which would look like a break.
_TELLS = sys.version_info >= (3, 11)


def is_left_by_break() -> bool:
    """Tell, called where a generator catches `GeneratorExit`, whether the loop over it was left by `break` or
    `return`. False for an error, and where that cannot be told (an iterator held in a variable).
    """
    frame = sys._getframe(1).f_back
    while _TELLS and frame is not None and frame.f_lasti >= 0:
        instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if instruction not in _SUSPENDED:
            return instruction in _LETS_GO
        frame = frame.f_back
    return False
