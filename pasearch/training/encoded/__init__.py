"""Encoded gradients and non-Gaussian noise, which plain DP-SGD does not use."""
