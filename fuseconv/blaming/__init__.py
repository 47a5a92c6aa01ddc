"""Where a numerical difference comes from: the values of a program, its fused form and its targets between two ops."""
