"""OptuNet, the network of 355 parameters (Laurent, Aldea, Franchi 2024)."""

from collections import OrderedDict

from torch import nn

from coset.errors import require_counts
from coset.models.convnet import GlobalAverage


def optunet(*, in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Return the small network behind thousands of published MNIST checkpoints.

    ``32 + 250 + 33 + 40 = 355`` parameters; 2 + 10 + 3 hidden units can be rescaled.  Pictures
    need at least 18 pixels a side.

    >>> sum(p.numel() for p in optunet().parameters())
    355
    """
    require_counts(in_channels=in_channels, classes=classes)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(in_channels, 2, 4, bias=False),
            activation1=nn.ReLU(),
            pool=nn.MaxPool2d(3),
            conv2=nn.Conv2d(2, 10, 5, groups=2, bias=False),
            activation2=nn.ReLU(),
            average=GlobalAverage(),
            linear1=nn.Linear(10, 3),
            activation3=nn.ReLU(),
            linear2=nn.Linear(3, classes),
        )
    )
