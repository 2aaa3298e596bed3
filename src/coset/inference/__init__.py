"""Methods: recipes that turn a problem into a posterior."""

from coset.inference.ensemble import DeepEnsemble as DeepEnsemble
from coset.inference.map_estimate import MaximumAPosteriori as MaximumAPosteriori
from coset.inference.method import Method as Method
from coset.inference.training.loop import train_stack as train_stack
from coset.inference.training.optimisers import SGD as SGD
from coset.inference.training.optimisers import Adam as Adam
from coset.inference.training.optimisers import Optimiser as Optimiser
from coset.inference.training.schedules import Constant as Constant
from coset.inference.training.schedules import Cosine as Cosine
from coset.inference.training.schedules import OneCycle as OneCycle
from coset.inference.training.schedules import Schedule as Schedule
from coset.inference.training.schedules import Steps as Steps
from coset.inference.training.state import TrainingState as TrainingState
