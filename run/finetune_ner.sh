#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint for named entities, once per seed; label and score every language; write records.
#
# usage: run/finetune_ner.sh --checkpoint FILE --data prepared/NAME --train-lang en --eval-langs hi,sw,te [--seeds 1,2,3]
#
#   --checkpoint     pretrained checkpoint; arch, sizes, dictionary, languages and tokenizer are taken from it
#   --data           prepared benchmark: labels.txt, <lang>/{train,dev,test}.jsonl
#   --train-lang     language to train on, or several: en,hi
#   --eval-langs     languages to score besides: zero-shot unless trained on (default: none)
#   --seeds          one run each (default: 1)
#   --config         settings of the training (default: run/configs/tiny/ner.yaml)
#   --set            one more setting, KEY=VALUE (several: separated by blanks)
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

# shellcheck disable=SC2154  # OPT_… come from parse_options
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "checkpoint: data: train-lang: eval-langs: seeds: config: set: selection: splits: fallback-lang: out: \
results: precision: gpus: force dry-run" "$@"

[[ -n "$OPT_checkpoint" && -n "$OPT_data" && -n "$OPT_train_lang" ]] ||
  die "--checkpoint, --data and --train-lang are needed (--help shows the usage)"
[[ -f "$OPT_checkpoint" ]] || die "--checkpoint $OPT_checkpoint: there is no such file"
[[ -f "$OPT_data/labels.txt" ]] || die "--data $OPT_data: no prepared benchmark (python -m data_prep.benchmarks.ner --help)"
config="${OPT_config:-$ROOT/run/configs/tiny/ner.yaml}"
[[ -f "$config" ]] || die "--config $config: there is no such file"
seeds="${OPT_seeds:-1}"
[[ "$seeds" =~ ^[0-9]+(,[0-9]+)*$ ]] || die "--seeds $seeds: not a list of whole numbers such as 1,2,3"
selection="${OPT_selection:-source-dev}"
out="${OPT_out:-finetune/$(basename "$OPT_data")/${OPT_train_lang//,/+}}"
results="${OPT_results:-results}"
langs="$(printf '%s' "$OPT_train_lang${OPT_eval_langs:+,$OPT_eval_langs}" | tr ',' '\n' | awk 'NF && !seen[$0]++' | paste -sd, -)"

[[ -n "${PYTHON:-}" ]] || activate
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

# Everything that a run depends on besides its seed; kept beside its checkpoints.
fingerprint() {
  local lang
  {
    cat "$config" "$OPT_data/labels.txt"
    for lang in ${OPT_train_lang//,/ }; do cat "$OPT_data/$lang/train.jsonl"; done
    sha256sum <"$OPT_checkpoint"
    printf '%s\n' "$OPT_train_lang" "$selection" "$OPT_set" "$OPT_precision" "$OPT_fallback_lang"
    [[ "$selection" == source-dev ]] || printf '%s\n' "$langs"
  } | sha256sum | cut -c1-32
}

# Arch and options of the checkpoint, then ours; the later --set wins.
settings_of_run() {
  local flags
  flags="$("$PYTHON" -m fairseq_interference.evaluation.finetuned flags --checkpoint "$OPT_checkpoint")"
  mapfile -t settings <<<"$flags"
  settings+=("train-langs=$OPT_train_lang" "selection=$selection")
  [[ "$selection" == source-dev ]] || settings+=("eval-langs=$langs")
  [[ -z "$OPT_fallback_lang" ]] || settings+=("fallback-lang=$OPT_fallback_lang")
  local more
  read -ra more <<<"$OPT_set"
  settings+=("${more[@]}")
}

train() { # train SEED FOLDER
  local command=("$PYTHON" -m fairseq_interference.launch --config "$config" --data "$OPT_data" --save-dir "$2"
    --init-from "$OPT_checkpoint")
  [[ ${#settings[@]} -gt 0 ]] || settings_of_run
  [[ -z "$OPT_precision" ]] || command+=(--precision "$OPT_precision")
  [[ -z "$OPT_gpus" ]] || command+=(--gpus "$OPT_gpus")
  command+=(--set "${settings[@]}" "seed=$1")
  if [[ -n "$OPT_dry_run" ]]; then
    OPT_dry_run="" run "${command[@]}" --dry-run # the launcher checks everything and prints the training command
  else
    run "${command[@]}"
  fi
}

settings=()
wanted="$(fingerprint)"
checkpoints=()
for seed in ${seeds//,/ }; do
  folder="$out/seed$seed"
  checkpoints+=("$folder/checkpoint_best.pt")
  mark="$folder/finetuned"
  if [[ -f "$folder/settings" && "$(<"$folder/settings")" != "$wanted" ]]; then
    [[ -n "$OPT_force" ]] || fail "$folder holds a run with other settings: give --force to redo it, or another --out"
    run rm -rf "$folder"
  fi
  if [[ -f "$mark" ]]; then
    log "seed $seed: trained already ($folder)"
    continue
  fi
  log "seed $seed: fine-tuning on $OPT_train_lang in $folder"
  if [[ -z "$OPT_dry_run" ]]; then
    mkdir -p "$folder"
    printf '%s\n' "$wanted" >"$folder/settings"
  fi
  train "$seed" "$folder"
  [[ -n "$OPT_dry_run" ]] || : >"$mark"
done

score=("$PYTHON" -m fairseq_interference.evaluation.finetuned score --checkpoint "${checkpoints[@]}" --data "$OPT_data"
  --langs "$langs" --splits "${OPT_splits:-dev,test}" --results "$results")
[[ -z "$OPT_fallback_lang" ]] || score+=(--fallback-lang "$OPT_fallback_lang")
[[ -z "$OPT_force" ]] || score+=(--force)
run "${score[@]}"
[[ -n "$OPT_dry_run" ]] || log "records: $results"
