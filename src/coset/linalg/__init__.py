"""Linear operators and the verbs that know their structure."""

from coset.linalg.embedded import Embedded as Embedded
from coset.linalg.kronecker import Kronecker as Kronecker
from coset.linalg.kronecker import RowBlocks as RowBlocks
from coset.linalg.nearly_inverse import nearly_inverse as nearly_inverse
from coset.linalg.operators import FromFunctions as FromFunctions
from coset.linalg.operators import LinearOperator as LinearOperator
from coset.linalg.operators import Solution as Solution
from coset.linalg.operators import cast as cast
from coset.linalg.operators import conjugate_gradients as conjugate_gradients
from coset.linalg.operators import dense as dense
from coset.linalg.operators import diagonal as diagonal
from coset.linalg.operators import inverse as inverse
from coset.linalg.operators import logdet as logdet
from coset.linalg.operators import root as root
from coset.linalg.operators import scale as scale
from coset.linalg.operators import shift as shift
from coset.linalg.operators import solve as solve
from coset.linalg.shifts import Shifts as Shifts
from coset.linalg.shifts import shifts_of as shifts_of
from coset.linalg.structured import BlockDiagonal as BlockDiagonal
from coset.linalg.structured import Dense as Dense
from coset.linalg.structured import Diagonal as Diagonal
from coset.linalg.structured import LowRankPlusDiagonal as LowRankPlusDiagonal
