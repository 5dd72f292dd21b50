"""Checkpoints of other software in and out: public XLM-R, Hugging Face transformers, one language's parts."""
