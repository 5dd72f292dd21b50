#!/usr/bin/env bash
# Tables, figures and words from the records of a folder.
#
# usage: bash run/report.sh --results DIR [--out DIR] [--no-figures]
#
#   --results     folder of records (*.json)
#   --out         where report.md, report.csv and figures/ go (default: the folder of records)
#   --no-figures  tables and text only
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ $# -eq 0 || "$1" == "-h" || "$1" == "--help" ]]; then
  usage
  exit $(($# ? 0 : 2))
fi
[[ -n "${PYTHON:-}" ]] || activate
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m fairseq_interference report "$@"
