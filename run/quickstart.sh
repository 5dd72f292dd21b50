#!/usr/bin/env bash
# From artificial text to a report: make four artificial languages, pre-train a joint model, one with adapters and
# a monolingual one per language, fine-tune each for NER, evaluate everywhere, write a report.
#
# usage: run/quickstart.sh [--scale smoke|full] [--out DIR] [--jobs N] [--no-setup] [--dry-run]
#
#   --scale     full: under 10 minutes on 2 cores (default); smoke: a minute, numbers mean nothing
#   --out       folder to work in (default: quickstart)
#   --jobs      trainings side by side, one thread each (default: number of cores, at most 4)
#   --no-setup  use the Python that is there instead of calling run/setup.sh
#   --dry-run   print the commands of every stage, run nothing
#
# Interrupt it anywhere and run it again: finished stages are skipped, trainings go on from their checkpoints.
# Exit codes: 0 done, 1 a stage failed, 2 usage, 130 interrupted.
set -euo pipefail
