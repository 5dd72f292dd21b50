"""Models: what is trained. One file per registered model; archs are presets at its foot."""
