"""Torch-only modules.

Legend of shapes, used in every docstring and comment of the package:

    T  tokens in a sequence (padded length)      B  sequences in a batch
    C  embedding size (``--encoder-embed-dim``)  F  feed-forward size
    H  attention heads                           L  languages
    V  dictionary size                           N  masked positions in a batch
    b  bottleneck of an adapter (``--adapter-dim``)

Language ids: ``lang_id``, LongTensor (B,), ids of the LanguageList.
"""
