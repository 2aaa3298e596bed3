"""The architectures of the studies, as plain torch modules with lower-case factories.

Every factory draws its start from torch's global generator, and nothing in the forward pass unless
``dropout`` is positive; those in ``MODELS`` have a default for every argument.
"""

from collections.abc import Callable

from torch import nn

from coset.models.convnet import convnet as convnet
from coset.models.depth_head import depth_head as depth_head
from coset.models.dilated import dilated as dilated
from coset.models.fixup import fixup_resnet as fixup_resnet
from coset.models.fixup import fixup_resnet20 as fixup_resnet20
from coset.models.fixup import fixup_resnet50 as fixup_resnet50
from coset.models.mlp import mlp as mlp
from coset.models.normalisation import FilterResponseNorm as FilterResponseNorm
from coset.models.normalisation import ThresholdedLinearUnit as ThresholdedLinearUnit
from coset.models.optunet import optunet as optunet
from coset.models.residual import padding_shortcut as padding_shortcut
from coset.models.residual import projection_shortcut as projection_shortcut
from coset.models.resnet import preactivation_resnet as preactivation_resnet
from coset.models.resnet import preactivation_resnet18 as preactivation_resnet18
from coset.models.resnet import resnet as resnet
from coset.models.resnet import resnet18 as resnet18
from coset.models.resnet import resnet20 as resnet20
from coset.models.resnet import resnet50 as resnet50
from coset.models.transformer import point_transformer as point_transformer
from coset.models.transformer import vision_transformer as vision_transformer
from coset.models.unet import unet as unet

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "convnet": convnet,
    "optunet": optunet,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "preactivation_resnet18": preactivation_resnet18,
    "fixup_resnet20": fixup_resnet20,
    "fixup_resnet50": fixup_resnet50,
    "vision_transformer": vision_transformer,
    "point_transformer": point_transformer,
    "unet": unet,
    "dilated": dilated,
}
