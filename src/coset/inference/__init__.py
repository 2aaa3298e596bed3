"""Methods: recipes that turn a problem into a posterior."""

from coset.inference.ensemble import DeepEnsemble as DeepEnsemble
from coset.inference.map_estimate import MaximumAPosteriori as MaximumAPosteriori
from coset.inference.method import Method as Method
from coset.inference.optimisers import SGD as SGD
from coset.inference.optimisers import Adam as Adam
from coset.inference.optimisers import Optimiser as Optimiser
from coset.inference.schedules import Constant as Constant
from coset.inference.schedules import Cosine as Cosine
from coset.inference.schedules import OneCycle as OneCycle
from coset.inference.schedules import Schedule as Schedule
from coset.inference.schedules import Steps as Steps
from coset.inference.training import TrainingState as TrainingState
from coset.inference.training import train_stack as train_stack
