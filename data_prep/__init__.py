"""Raw text and official benchmark files to data-bin. Knows no model."""
