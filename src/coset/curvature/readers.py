"""What we know of the functions that read weights; any other is foreign."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.curvature.attention import read_attention
from coset.curvature.direct import read_prelu
from coset.curvature.layers import (
    read_batch_norm,
    read_convolution,
    read_embedding,
    read_group_norm,
    read_instance_norm,
    read_item,
    read_layer_norm,
    read_linear,
    read_rms_norm,
    read_transposed,
)
from coset.curvature.recurrent import STEPS, read_recurrent
from coset.curvature.watch import Reader

READERS: Mapping[Any, Reader] = {
    functional.linear: read_linear,
    torch.conv1d: read_convolution,
    torch.conv2d: read_convolution,
    torch.conv3d: read_convolution,
    torch.conv_transpose1d: read_transposed,
    torch.conv_transpose2d: read_transposed,
    torch.conv_transpose3d: read_transposed,
    functional.batch_norm: read_batch_norm,
    functional.group_norm: read_group_norm,
    functional.instance_norm: read_instance_norm,
    functional.layer_norm: read_layer_norm,
    functional.rms_norm: read_rms_norm,
    functional.embedding: read_embedding,
    Tensor.__getitem__: read_item,
    torch.prelu: read_prelu,
    functional.multi_head_attention_forward: read_attention,
    **dict.fromkeys(STEPS, read_recurrent),
}
"""What we know of functions that read weights; any other is foreign."""
