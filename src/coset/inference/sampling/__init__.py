"""What the samplers share: targets, integrators, adaptation and the run loop of chains."""
