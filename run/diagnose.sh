#!/usr/bin/env bash
# See interference: studies of a model, written as CSV, JSON and figures into a folder whose index.md shows them.
#
# usage: bash run/diagnose.sh STUDY [FLAGS]     (bash run/diagnose.sh STUDY --help shows the flags)
#
#   all          gradients, masks, cka, layers and gaps of one model; without flags of a small one that is made here
#   gradients    do the languages' gradients conflict, where in the network, how it changes over training
#   masks        which weights belong to whom: L0 masks per language
#   cka          how far fine-tuning moved the representation, layer by layer
#   layers       which layers fine-tuning needs, and which it should not touch
#   gaps         the transfer gap along a fine-tuning run
#   corpus-size  does a language interfere less if it has less text (trains models)
#   similarity   do distant languages interfere more (trains models)
#   index        draw the figures of a folder again
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  all) exec bash "$ROOT/run/diagnose_all.sh" "${@:2}" ;;
  corpus-size | similarity) exec bash "$ROOT/run/study_interference.sh" "$@" ;;
esac
exec_module "fairseq_interference diagnose" "$@"
