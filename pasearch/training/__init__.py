"""Private training of one network: batches, gradients, clipping, noise, optimizer, metrics."""
