"""Activations that wait in the host's memory: copied out behind the forward pass, back behind the other.

    bytes    what a layer keeps · layers of a stage · share offloaded, per micro-batch
    exposed  max(0, bytes / W_host - forward) + max(0, bytes / W_host - backward)

W_host is the link of one GPU to its host in one direction. Copies run on engines of their own, so
that what hides costs nothing. Source: ZeRO-Infinity (arXiv:2104.07857), section 5.2.
"""

from __future__ import annotations

import numpy as np

from roofline.job import Job
from roofline.kept import in_a_layer
from roofline.microbatch import MicroBatch
from roofline.units import Bytes, Seconds


def offload(job: Job, part: MicroBatch) -> Seconds:
    """Exposed seconds of copies of a micro-batch's activations, both ways. [s]"""
    if not np.any(job.layout.offload_share):
        return 0.0
    copy = offloaded(job) / job.host_link
    ahead = np.maximum(0.0, copy - part.forward_seconds)
    return ahead + np.maximum(0.0, copy - part.backward_seconds)


def offloaded(job: Job) -> Bytes:
    """What a micro-batch of the average stage leaves in the host's memory. [B]"""
    kept = in_a_layer(job.model, job.layout, job.recipe)
    stays = sum((kind.stays for kind in kept.values()), start=0.0)
    layers = (job.model.layers + job.model.mtp) / job.layout.pp
    return stays * layers * job.layout.offload_share
