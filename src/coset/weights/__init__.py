"""What a network's weights are: named tensors, their flat layout, stacks, and a pure function."""

from coset.weights.arithmetic import map_weights as map_weights
from coset.weights.arithmetic import noise_like as noise_like
from coset.weights.arithmetic import squared_norm as squared_norm
from coset.weights.layout import Layout as Layout
from coset.weights.network import Network as Network
from coset.weights.network import assign as assign
from coset.weights.network import functionalise as functionalise
from coset.weights.network import weights_of as weights_of
from coset.weights.stacking import check_fit as check_fit
from coset.weights.stacking import members_of as members_of
from coset.weights.stacking import stack as stack
from coset.weights.stacking import unstack as unstack
