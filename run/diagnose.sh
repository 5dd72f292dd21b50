#!/usr/bin/env bash
# See interference: one study of a model, written as CSV, JSON and figures into OUT, with an index.md that shows them.
#
# usage: bash run/diagnose.sh STUDY [FLAGS]     (bash run/diagnose.sh STUDY --help shows the flags)
#
#   gradients    do the languages' gradients conflict, where in the network, how it changes over training
#   masks        which weights belong to whom: L0 masks per language
#   cka          how far fine-tuning moved the representation, layer by layer
#   layers       which layers fine-tuning needs, and which it should not touch
#   gaps         the transfer gap along a fine-tuning run
#   index        draw the figures of a folder again
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec_module "fairseq_interference diagnose" "$@"
