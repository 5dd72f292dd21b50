#!/usr/bin/env bash
# Raw text to data-bin: clean, split, tokenise, learn a vocabulary, encode, binarise.
#
# Usage: data_prep/prepare.sh --langs en,hi,sw --raw RAW --out DATA_BIN [options]
#
#   RAW holds LANG.txt[.gz], LANG/*.txt[.gz], or a sources.yaml (docs/data.md); it may be the yaml itself.
#   DATA_BIN gets dict.txt, languages.txt, tokenizer/, LANG/{train,valid,test}.{bin,idx} and report.json;
#   the steps in between lie in DATA_BIN.work. Run it again after an interruption: finished steps are skipped.
#
#   --sources FILE            a sources.yaml outside RAW, with paths relative to RAW
#   --bpe subword-nmt|sentencepiece     library of the vocabulary (subword-nmt)
#   --vocab-size N            pieces (32000); fewer, with a warning, when the text is small
#   --temperature T           languages are sampled ~ share^(1/T) for the vocabulary (1.43)
#   --bpe-sample N            lines that the vocabulary is learnt from (1000000)
#   --tokenizer moses|none    before the vocabulary (moses; none with sentencepiece)
#   --tokenizer-from PATH     learn nothing: take the vocabulary of a checkpoint or folder as it is
#   --append                  add languages to DATA_BIN: dictionary, ids and existing folders stay
#   --normalization nfc|none  Unicode form (nfc)
#   --valid-lines N --test-lines N      lines, a fraction (0.01), or auto: 1000, at most a twentieth
#   --max-lines LANG=N …      lines of a language for training: the low-resource version
#   --min-chars N --max-chars N --cut-chars N   leave out short or long lines, cut very long ones (2000)
#   --script LANG=Deva … --script-share 0.5     leave out lines in another script
#   --seed S                  of split and sampling (1)
#   --workers N               processes (cores); the result does not depend on it
#   --memory 512M             of sorting (more goes by ranges from disk) and of learning (rare words are left out)
#   --work DIR --force --dry-run
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
case "${1:-}" in
  -h | --help | "")
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
    [ -n "${1:-}" ] && exit 0
    exit 2
    ;;
esac
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ -x "$ROOT/.venv/bin/python" ] && PYTHON="$ROOT/.venv/bin/python"
fi
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" # nothing here multiplies matrices
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m data_prep.prepare "$@"
