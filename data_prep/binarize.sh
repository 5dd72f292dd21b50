#!/usr/bin/env bash
# Binarise encoded text with fairseq-preprocess: one dictionary, all languages, one process.
#
# Usage: data_prep/binarize.sh --dict FILE --out DATA_BIN --pieces LANG=FOLDER … [--workers N] [--force]
#   FOLDER holds train.txt, valid.txt and test.txt of sub-word pieces. PYTHON chooses the interpreter.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ -x "$ROOT/.venv/bin/python" ] && PYTHON="$ROOT/.venv/bin/python"
fi
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m data_prep.binarize "$@"
