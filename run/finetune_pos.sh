#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint for parts of speech, once per seed;
# predict and score every language; write records.
#
# usage: run/finetune_pos.sh --checkpoint FILE --data prepared/NAME --train-lang en --eval-langs hi,sw,te [--seeds 1,2,3]
#
#   --checkpoint     pretrained checkpoint; arch, sizes, dictionary, languages and tokenizer are taken from it
#   --data           prepared benchmark: labels.txt, <lang>/{train,dev,test}.jsonl
#   --train-lang     language to train on, or several: en,hi
#   --eval-langs     languages to score besides: zero-shot unless trained on (default: none)
#   --seeds          one run each (default: 1)
#   --config         settings of the training (default: run/configs/tiny/pos.yaml)
#   --set            one more setting, KEY=VALUE (several: separated by blanks)
#   --grid           settings to choose from by the dev splits, KEY=A,B (several: separated by blanks), or config: those
#                    of --config; the best is scored
#   --few-shot       train on so many dev examples of each of --eval-langs besides (default: 0)
#   --selection      source-dev, target-dev or all-dev: which dev splits choose the epoch (default: source-dev)
#   --splits         prepared splits to score (default: dev,test)
#   --fallback-lang  language whose parts serve languages that the checkpoint does not know
#   --out            folder of the runs (default: finetune/NAME/<train-lang>)
#   --results        folder of the records (default: results)
#   --precision      fp32, amp, bf16 or fp16 (default: the configuration's)
#   --gpus           number of GPUs, or of processes on a machine without one (default: all GPUs)
#   --force          redo what was finished with other settings
#   --dry-run        check everything, print the commands, run nothing
#
# Interrupt it anywhere and run it again: finished seeds and scores are skipped, a training goes on from its checkpoint.
# Exit codes: 0 done, 1 failed, 2 usage, 75 told to stop and saved, 130 interrupted.
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec_module "fairseq_interference.finetune" --task pos "$@"
