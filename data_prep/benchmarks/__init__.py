"""Official benchmark files to prepared files."""
