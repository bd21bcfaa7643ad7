"""How one candidate is trained privately: batch, gradients, bound, sum, noise, step, average."""
