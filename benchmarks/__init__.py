"""Measurements. Figures are ratios within one run: machines are shared and noisy, so absolute numbers mean little."""
