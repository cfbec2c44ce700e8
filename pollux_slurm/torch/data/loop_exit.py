"""Find out whether a loop was left by `break` or by an exception.

Both close the loop's generator with `GeneratorExit`, and Python hides the exception meanwhile. The current
instruction of the loop's frame shows which it was. `break` and `return` release the generator by an
instruction of their own; an exception leaves the frame at the instruction that raised it.
"""

from __future__ import annotations

import dis
import sys

# The instructions that release a loop's iterator: POP_ITER from Python 3.14 on.
_RELEASES_ITERATOR = ("POP_TOP", "POP_ITER")
# Where a generator around ours, such as a progress bar's, is suspended when it is released, too.
_SUSPENDED = ("YIELD_VALUE", "RESUME", "SEND")
# In Python 3.10 a signal handler can raise between two instructions, which would look like a break.
_IS_SUPPORTED = sys.version_info >= (3, 11)


def is_left_by_break() -> bool:
    """Return whether the loop over the calling generator was left by `break` or `return`.

    Call it where the generator catches `GeneratorExit`. False for an exception, and where the answer is not
    known (an iterator kept in a variable).
    """
    frame = sys._getframe(1).f_back
    while _IS_SUPPORTED and frame is not None and frame.f_lasti >= 0:
        instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if instruction not in _SUSPENDED:
            return instruction in _RELEASES_ITERATOR
        frame = frame.f_back
    return False
