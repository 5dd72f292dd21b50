#!/usr/bin/env bash
# Score checkpoints on prepared data and write one record per checkpoint and language.
#
# usage: bash run/evaluate.sh --task ner|pos|nli|qa|mlm --checkpoint FILE … --data DIR [--langs xx,yy] [--results DIR]
#        bash run/evaluate.sh --task retrieval --checkpoint FILE … --source FILE --target FILE --langs xx,yy
#
#   --task        ner, pos, nli, qa: predictions of a fine-tuned checkpoint; mlm: perplexity of a pretrained one;
#                 retrieval: whether its sentences find their translations
#   --checkpoint  one or more; all are scored by one process
#   --data        ner, pos, nli, qa: prepared/NAME; mlm: data-bin
#   --langs       languages to score (default: all of the checkpoint)
#   --split       test (default), dev or valid
#   --results     folder of the records (default: results)
#   --run-id      name of the run in its records, for one checkpoint (default: name of the checkpoint's folder)
#   --max-lines   mlm, retrieval: read only the first lines
#   --source, --target, --columns, --layer, --benchmark   retrieval: see docs/scores.md
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec_module "fairseq_interference.evaluation.checkpoint_records" "$@"
