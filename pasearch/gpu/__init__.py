"""GPU kernels (Triton) for random bits, noise on sums, and training steps of dense networks."""
