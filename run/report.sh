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

exec_module "fairseq_interference report" "$@"
