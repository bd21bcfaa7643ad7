"""Kernels of our own for a GPU: its random bits, and noise on a sum."""
