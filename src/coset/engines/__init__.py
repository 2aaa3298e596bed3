"""Engines run many independent tasks: in this process, in worker processes, on several machines.

A task is a pure function of its key that writes its own result whole or not at all, so that
running it twice does no harm.  Nothing here imports torch.
"""

from coset.engines.outcome import Engine as Engine
from coset.engines.outcome import Outcome as Outcome
from coset.engines.process import Process as Process
from coset.engines.ray_cluster import Ray as Ray
from coset.engines.serial import Serial as Serial
