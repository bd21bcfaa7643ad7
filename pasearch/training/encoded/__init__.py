"""Gradients encoded against a public codebook: a wing that plain DP-SGD never enters."""
