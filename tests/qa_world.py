"""Tokenizers that change text in every way that counts, and texts that they change."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fairseq_interference.data.tokenizer import Tokenizer

ODD_TEXTS = {
    "plain": "the small world of words",
    "hindi nukta": "\u0921\u093f\u095e\u0947\u0928\u094d\u0938 \u0958\u0932\u092e \u091c\u093c\u092e\u0940\u0928",
    "thai sara am": "\u0e17\u0e33\u0e19\u0e49\u0e33\u0e04\u0e33\u0e19\u0e33",
    "full width": "\uff21\uff22\uff23\u3000\uff11\uff12\uff13\uff0c\u6771\u4eac\uff08\u65e5\u672c\uff09",
    "astral": "a \U00020000\U0002a6d6 b \U0001f600 \U0001d504\U0001d505 c",
    "byte order mark": "\ufeffthe world\ufeff of\ufeffwords\ufeff",
    "ligatures": "\ufb01nal o\ufb03ce \ufdfa \u00bd of \u2460",
    "blanks": "  the  \n\n small\t\t\u00a0world \u200b of\u2003 words  ",
    "marks": "e\u0301 a\u0323\u0307 \u0628\u0651\u064e \u0301x \u1100\u1161\u11a8 \u0344",
    "controls": "wor\x08ld \x1cof\x7fwords \u200eor\u00adds so\u2060ft",
    "symbols": "<s> of </s> @@ a@@b <mask>words <unk>",
    "joiners": "\u0c15\u0c4d\u200c\u0c37 \u0915\u094d\u200d\u0937 world\u200d",
    "compatibility": "\u00a8 \u2026 \u2122 \u33a1 \u017f\u0307 \u1e9b\u0323",
    "lone": "\u0302 \u0323",
    "empty": "",
    "only blanks": " \u3000\n",
}

TRAINING = [
    "the small world of words and the office of the final flow",
    "\u0e17\u0e4d\u0e32\u0e19\u0e49\u0e4d\u0e32\u0e04\u0e4d\u0e32",
    "\u0921\u093f\u092b\u093c\u0947\u0928\u094d\u0938 \u0915\u093c\u0932\u092e",
    "ABC 123 \u6771\u4eac (\u65e5\u672c) 1\u20442",
]


def sentencepiece_model(path: Path, rule: str = "nmt_nfkc", **options: Any) -> Path:
    """Train a model of about a hundred pieces."""
    import sentencepiece

    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 20),
        model_writer=stream,
        normalization_rule_name=rule,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 100, **options},
    )
    path.write_bytes(stream.getvalue())
    return path


def make_tokenizer(folder: Path, name: str) -> Tokenizer:
    """``nfkc``, ``identity``, ``bytes``, ``suffix`` (sentencepiece), ``bpe`` or ``moses`` (subword-nmt)."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in ("bpe", "moses"):
        from subword_nmt.learn_bpe import learn_bpe

        with open(folder / "codes", "w", encoding="utf-8") as stream:
            learn_bpe(io.StringIO("\n".join(TRAINING * 20)), stream, 40)
        rule = "none" if name == "bpe" else "moses"
        return Tokenizer.create(folder, "subword-nmt", folder / "codes", normalization="nfc", pretokenizer=rule)
    options: dict[str, Any] = {
        "nfkc": {},
        "identity": {"rule": "identity"},
        "bytes": {"byte_fallback": True, "vocab_size": 500},
        "suffix": {"treat_whitespace_as_suffix": True},
    }[name]
    model = sentencepiece_model(folder / "m.model", **options)
    normalization = "nfc" if name == "identity" else "none"
    return Tokenizer.create(folder, "sentencepiece", model, normalization=normalization, pretokenizer="none")
