"""Bayesian deep learning modulo symmetries.

Names are imported when they are first used, so that ``import coset`` and ``coset --help`` do not
wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coset.version import __version__ as __version__

if TYPE_CHECKING:
    from coset.alignment.barrier import LossPath as LossPath
    from coset.alignment.barrier import barrier as barrier
    from coset.alignment.by_activations import ByActivations as ByActivations
    from coset.alignment.by_covariance import ByCovariance as ByCovariance
    from coset.alignment.by_sinkhorn import BySinkhorn as BySinkhorn
    from coset.alignment.by_straight_through import ByStraightThrough as ByStraightThrough
    from coset.alignment.by_weights import ByWeights as ByWeights
    from coset.alignment.interpolation import average as average
    from coset.alignment.interpolation import interpolate as interpolate
    from coset.alignment.many import Frame as Frame
    from coset.alignment.many import MatchMany as MatchMany
    from coset.alignment.many import match_many as match_many
    from coset.alignment.many import match_stream as match_stream
    from coset.alignment.match import match as match
    from coset.alignment.result import Match as Match
    from coset.alignment.transpositions import (
        permutation_with_transpositions as permutation_with_transpositions,
    )
    from coset.alignment.transpositions import transpositions as transpositions
    from coset.bayes.likelihood import Bernoulli as Bernoulli
    from coset.bayes.likelihood import Categorical as Categorical
    from coset.bayes.likelihood import FullLikelihood as FullLikelihood
    from coset.bayes.likelihood import GaussianNoise as GaussianNoise
    from coset.bayes.likelihood import HeteroscedasticGaussian as HeteroscedasticGaussian
    from coset.bayes.likelihood import Likelihood as Likelihood
    from coset.bayes.multivariate import MultivariateNoise as MultivariateNoise
    from coset.bayes.prior import GaussianPrior as GaussianPrior
    from coset.bayes.problem import Problem as Problem
    from coset.curvature.kfac import KFAC as KFAC
    from coset.curvature.linearising import linearise as linearise
    from coset.curvature.low_rank import LowRank as LowRank
    from coset.curvature.matrix_free import ConjugateGradients as ConjugateGradients
    from coset.curvature.matrix_free import LanczosQuadrature as LanczosQuadrature
    from coset.curvature.matrix_free import MatrixFree as MatrixFree
    from coset.curvature.matrix_free import StochasticDescent as StochasticDescent
    from coset.curvature.measure import Curvature as Curvature
    from coset.curvature.measure import Measured as Measured
    from coset.curvature.sampled import MonteCarloFisher as MonteCarloFisher
    from coset.curvature.structures import DiagonalOnly as DiagonalOnly
    from coset.curvature.structures import Full as Full
    from coset.curvature.tangent import Tangent as Tangent
    from coset.errors import CosetError as CosetError
    from coset.inference.ensemble import DeepEnsemble as DeepEnsemble
    from coset.inference.hmc import HMC as HMC
    from coset.inference.laplace.by_evidence import ByEvidence as ByEvidence
    from coset.inference.laplace.method import Laplace as Laplace
    from coset.inference.laplace.part import LastLayer as LastLayer
    from coset.inference.laplace.part import Subnetwork as Subnetwork
    from coset.inference.map_estimate import MaximumAPosteriori as MaximumAPosteriori
    from coset.inference.mean_field import MeanField as MeanField
    from coset.inference.method import Method as Method
    from coset.inference.monte_carlo_dropout import MCDropout as MCDropout
    from coset.inference.multi_mode import MultiMode as MultiMode
    from coset.inference.nuts import NUTS as NUTS
    from coset.inference.rebased import RebasedGaussian as RebasedGaussian
    from coset.inference.run_record import Checkpoint as Checkpoint
    from coset.inference.sampling.stochastic import Cyclical as Cyclical
    from coset.inference.sghmc import SGHMC as SGHMC
    from coset.inference.sgld import SGLD as SGLD
    from coset.inference.swag import SWAG as SWAG
    from coset.inference.training.learnt import Learnt as Learnt
    from coset.inference.training.optimisers import SGD as SGD
    from coset.inference.training.optimisers import Adam as Adam
    from coset.inference.training.schedules import Constant as Constant
    from coset.inference.training.schedules import Cosine as Cosine
    from coset.inference.training.schedules import OneCycle as OneCycle
    from coset.inference.training.schedules import Steps as Steps
    from coset.inference.training.snapshots import Snapshots as Snapshots
    from coset.metrics.evaluation import evaluate as evaluate
    from coset.posterior.families import FitReport as FitReport
    from coset.posterior.families import Mixture as Mixture
    from coset.posterior.families import PointMass as PointMass
    from coset.posterior.families import Posterior as Posterior
    from coset.posterior.families import Samples as Samples
    from coset.posterior.gaussian import Gaussian as Gaussian
    from coset.posterior.joint import JointPredictions as JointPredictions
    from coset.posterior.linearised import Linearised as Linearised
    from coset.posterior.links import LaplaceBridge as LaplaceBridge
    from coset.posterior.links import Probit as Probit
    from coset.posterior.links import SampledSoftmax as SampledSoftmax
    from coset.posterior.links import TopDifference as TopDifference
    from coset.posterior.low_rank import LowRankGaussian as LowRankGaussian
    from coset.posterior.maps import Maps as Maps
    from coset.posterior.predict import MonteCarlo as MonteCarlo
    from coset.posterior.predict import PredictionRule as PredictionRule
    from coset.posterior.predict import Predictions as Predictions
    from coset.posterior.random_masks import RandomMasks as RandomMasks
    from coset.posterior.symmetrised import Symmetrised as Symmetrised
    from coset.posterior.symmetrised import symmetrised as symmetrised
    from coset.posterior.tangent_samples import TangentSamples as TangentSamples
    from coset.posterior.tiles import Tiled as Tiled
    from coset.posterior.unit_blocks import UnitBlocks as UnitBlocks
    from coset.predictor import Predictor as Predictor
    from coset.predictor import fit as fit
    from coset.predictor import load as load
    from coset.pruning import prune as prune
    from coset.symmetry.check import symmetry_error as symmetry_error
    from coset.symmetry.describing.drawing import draw as draw
    from coset.symmetry.discover import discover as discover
    from coset.symmetry.elements import Element as Element
    from coset.symmetry.elements import PermutationFactor as PermutationFactor
    from coset.symmetry.elements import Pinned as Pinned
    from coset.symmetry.elements import ScaleInvariance as ScaleInvariance
    from coset.symmetry.elements import ScalingFactor as ScalingFactor
    from coset.symmetry.elements import Site as Site
    from coset.symmetry.group import SymmetryGroup as SymmetryGroup
    from coset.symmetry.removing.canonical import canonicalise as canonicalise
    from coset.symmetry.removing.mass import MassMinimum as MassMinimum
    from coset.symmetry.removing.mass import MassProfile as MassProfile
    from coset.symmetry.removing.mass import mass_profile as mass_profile
    from coset.symmetry.removing.mass import minimise_mass as minimise_mass
    from coset.symmetry.removing.tracking import OrderTrack as OrderTrack
    from coset.symmetry.removing.tracking import track_order as track_order
    from coset.symmetry.written import PermutationByHand as PermutationByHand
    from coset.symmetry.written import ScalingByHand as ScalingByHand
    from coset.weights.layout import Layout as Layout
    from coset.weights.network import Network as Network
    from coset.weights.network import assign as assign
    from coset.weights.network import functionalise as functionalise
    from coset.weights.network import weights_of as weights_of
    from coset.weights.stacking import stack as stack
    from coset.weights.stacking import unstack as unstack

NAMES: dict[str, str] = {
    "BySinkhorn": "coset.alignment.by_sinkhorn",
    "ByStraightThrough": "coset.alignment.by_straight_through",
    "ByActivations": "coset.alignment.by_activations",
    "ByCovariance": "coset.alignment.by_covariance",
    "Frame": "coset.alignment.many",
    "MatchMany": "coset.alignment.many",
    "match_stream": "coset.alignment.many",
    "match_many": "coset.alignment.many",
    "LossPath": "coset.alignment.barrier",
    "barrier": "coset.alignment.barrier",
    "ByWeights": "coset.alignment.by_weights",
    "average": "coset.alignment.interpolation",
    "interpolate": "coset.alignment.interpolation",
    "match": "coset.alignment.match",
    "Match": "coset.alignment.result",
    "permutation_with_transpositions": "coset.alignment.transpositions",
    "transpositions": "coset.alignment.transpositions",
    "Bernoulli": "coset.bayes.likelihood",
    "Categorical": "coset.bayes.likelihood",
    "GaussianNoise": "coset.bayes.likelihood",
    "HeteroscedasticGaussian": "coset.bayes.likelihood",
    "FullLikelihood": "coset.bayes.likelihood",
    "Likelihood": "coset.bayes.likelihood",
    "MultivariateNoise": "coset.bayes.multivariate",
    "GaussianPrior": "coset.bayes.prior",
    "Problem": "coset.bayes.problem",
    "KFAC": "coset.curvature.kfac",
    "LowRank": "coset.curvature.low_rank",
    "ConjugateGradients": "coset.curvature.matrix_free",
    "LanczosQuadrature": "coset.curvature.matrix_free",
    "MatrixFree": "coset.curvature.matrix_free",
    "StochasticDescent": "coset.curvature.matrix_free",
    "MonteCarloFisher": "coset.curvature.sampled",
    "DiagonalOnly": "coset.curvature.structures",
    "Curvature": "coset.curvature.measure",
    "Measured": "coset.curvature.measure",
    "Full": "coset.curvature.structures",
    "Tangent": "coset.curvature.tangent",
    "linearise": "coset.curvature.linearising",
    "CosetError": "coset.errors",
    "Checkpoint": "coset.inference.run_record",
    "DeepEnsemble": "coset.inference.ensemble",
    "HMC": "coset.inference.hmc",
    "Laplace": "coset.inference.laplace.method",
    "MaximumAPosteriori": "coset.inference.map_estimate",
    "MeanField": "coset.inference.mean_field",
    "Method": "coset.inference.method",
    "MCDropout": "coset.inference.monte_carlo_dropout",
    "MultiMode": "coset.inference.multi_mode",
    "NUTS": "coset.inference.nuts",
    "SGD": "coset.inference.training.optimisers",
    "Adam": "coset.inference.training.optimisers",
    "RebasedGaussian": "coset.inference.rebased",
    "Constant": "coset.inference.training.schedules",
    "Cosine": "coset.inference.training.schedules",
    "OneCycle": "coset.inference.training.schedules",
    "Steps": "coset.inference.training.schedules",
    "Snapshots": "coset.inference.training.snapshots",
    "SGHMC": "coset.inference.sghmc",
    "SGLD": "coset.inference.sgld",
    "Cyclical": "coset.inference.sampling.stochastic",
    "SWAG": "coset.inference.swag",
    "LastLayer": "coset.inference.laplace.part",
    "Subnetwork": "coset.inference.laplace.part",
    "Learnt": "coset.inference.training.learnt",
    "ByEvidence": "coset.inference.laplace.by_evidence",
    "evaluate": "coset.metrics.evaluation",
    "FitReport": "coset.posterior.families",
    "Mixture": "coset.posterior.families",
    "PointMass": "coset.posterior.families",
    "Posterior": "coset.posterior.families",
    "Samples": "coset.posterior.families",
    "Gaussian": "coset.posterior.gaussian",
    "JointPredictions": "coset.posterior.joint",
    "Linearised": "coset.posterior.linearised",
    "LaplaceBridge": "coset.posterior.links",
    "Probit": "coset.posterior.links",
    "SampledSoftmax": "coset.posterior.links",
    "TopDifference": "coset.posterior.links",
    "LowRankGaussian": "coset.posterior.low_rank",
    "Maps": "coset.posterior.maps",
    "MonteCarlo": "coset.posterior.predict",
    "PredictionRule": "coset.posterior.predict",
    "Predictions": "coset.posterior.predict",
    "RandomMasks": "coset.posterior.random_masks",
    "Symmetrised": "coset.posterior.symmetrised",
    "symmetrised": "coset.posterior.symmetrised",
    "Tiled": "coset.posterior.tiles",
    "prune": "coset.pruning",
    "TangentSamples": "coset.posterior.tangent_samples",
    "UnitBlocks": "coset.posterior.unit_blocks",
    "Predictor": "coset.predictor",
    "fit": "coset.predictor",
    "load": "coset.predictor",
    "canonicalise": "coset.symmetry.removing.canonical",
    "symmetry_error": "coset.symmetry.check",
    "discover": "coset.symmetry.discover",
    "draw": "coset.symmetry.describing.drawing",
    "Element": "coset.symmetry.elements",
    "PermutationFactor": "coset.symmetry.elements",
    "Pinned": "coset.symmetry.elements",
    "ScaleInvariance": "coset.symmetry.elements",
    "ScalingFactor": "coset.symmetry.elements",
    "Site": "coset.symmetry.elements",
    "SymmetryGroup": "coset.symmetry.group",
    "MassMinimum": "coset.symmetry.removing.mass",
    "MassProfile": "coset.symmetry.removing.mass",
    "mass_profile": "coset.symmetry.removing.mass",
    "minimise_mass": "coset.symmetry.removing.mass",
    "OrderTrack": "coset.symmetry.removing.tracking",
    "track_order": "coset.symmetry.removing.tracking",
    "PermutationByHand": "coset.symmetry.written",
    "ScalingByHand": "coset.symmetry.written",
    "Layout": "coset.weights.layout",
    "Network": "coset.weights.network",
    "assign": "coset.weights.network",
    "functionalise": "coset.weights.network",
    "weights_of": "coset.weights.network",
    "stack": "coset.weights.stacking",
    "unstack": "coset.weights.stacking",
}
"""Every public name and the module that defines it."""

ROOMS = ("data", "engines", "metrics", "models", "studies", "tomography")
"""Modules that are reached as ``coset.metrics`` without an import of their own."""

__all__ = [*NAMES, *ROOMS]  # noqa: PLE0604 (names are known at run time)


def __getattr__(name: str) -> Any:
    """Imports a public name on first use."""
    if name in NAMES:
        value = getattr(import_module(NAMES[name]), name)
    elif name in ROOMS:
        value = import_module(f"coset.{name}")
    else:
        raise AttributeError(f"module 'coset' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *NAMES, *ROOMS})
