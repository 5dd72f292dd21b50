#!/usr/bin/env bash
# Pre-train a model from a configuration.
#
#   bash run/pretrain.sh --config run/configs/tiny/joint.yaml --data DATA --save-dir SAVE
#
#   --config FILE        which run (run/configs/tiny, run/configs/paper)
#   --data DIR[:DIR…]    prepared data, or shards of it
#   --save-dir DIR       where checkpoints go; an unfinished run in it goes on
#   --init-from FILE     start from this checkpoint with a fresh optimizer, schedule and data position
#   --precision P        fp32 | amp | bf16 | fp16
#   --gpus N             number of GPUs (default: all); without GPUs: number of processes
#   --set KEY=VALUE …    change a key of the configuration or a flag of fairseq-train
#   --dry-run            check everything, print the fairseq-train command, run nothing
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ $# -eq 0 || "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 2
fi
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    python=python3
    if [[ -x "$root/.venv/bin/python" ]]; then python="$root/.venv/bin/python"; fi
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m fairseq_interference.launch "$@"
