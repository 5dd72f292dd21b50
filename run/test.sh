#!/usr/bin/env bash
# Set the environment up and run the tests.
#
# Usage: bash run/test.sh [--all] [--jobs N] [-- PYTEST ARGUMENTS]
#
#   --all      lint (ruff), types (mypy), shell scripts (shellcheck), then all tests; without it: the quick tests
#   --jobs N   test processes (default: number of cores, at most 4; 0 runs them in this process)
#
# INTERFERENCE_REAL_DATA=FOLDER adds the tests that need real multilingual data.
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "all jobs:" "$@"
activate
cd "$ROOT"

FAILED=()
gate() {
  local name="$1"
  shift
  run "$@" || FAILED+=("$name")
}

cores="$("$PYTHON" -c 'import os; print(min(4, os.cpu_count() or 1))')"
jobs="${OPT_jobs:-$cores}"
[[ "$jobs" =~ ^[0-9]+$ ]] || die "--jobs takes a number, not $jobs"

if [[ -n "$OPT_all" ]]; then
  mapfile -t scripts < <(find run data_prep .ci benchmarks -type f \( -name '*.sh' -o -path .ci/run \) | sort)
  gate ruff "$PYTHON" -m ruff check .
  gate mypy "$PYTHON" -m mypy fairseq_interference data_prep
  gate shellcheck shellcheck -x "${scripts[@]}"
  gate tests "$PYTHON" -m pytest -n "$jobs" --dist loadfile "${REST[@]}"
else
  gate tests "$PYTHON" -m pytest -n "$jobs" --dist loadfile -m "not slow" "${REST[@]}"
fi

if ((${#FAILED[@]})); then
  fail "failed: ${FAILED[*]}"
fi
