"""Artificial languages with known structure: one meaning, spoken in several languages.

docs/synthetic.md explains the worlds with examples.
"""
