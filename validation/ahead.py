"""What every rank loads, loaded once in the process that ranks are forked from.

FSDP2 takes torch's compiler with it, which takes longer to load than many a kernel is measured.
"""

from __future__ import annotations

from contextlib import suppress

import validation.launch  # noqa: F401

with suppress(Exception):  # whoever needs what is not there says so
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401
