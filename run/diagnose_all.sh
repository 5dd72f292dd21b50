#!/usr/bin/env bash
# Every study of one model: gradient conflict, masks per language, CKA, layer probes, the gap along fine-tuning.
#
# usage: bash run/diagnose.sh all [--checkpoint FILE --data DATA_BIN --prepared DIR --train-lang LANG --eval-langs A,B
#                                 [--task ner|pos|nli|qa]] [--scale full|smoke] [--out DIR] [--jobs N] [--dry-run]
#
#   --checkpoint  pretrained model, ours or a converted XLM-R; --data: text prepared with its dictionary
#   --prepared    benchmark to fine-tune on (docs/finetuning.md), --task (ner): its kind
#   --train-lang, --eval-langs   source language, and those to transfer to
#                 without these: three artificial languages and a small model, made here
#   --scale       full: 15 minutes on two cores (default); smoke: a minute, its numbers mean nothing
#   --out         folder of studies (default: results/diagnose); what is trained lies in OUT/work
#   --jobs        stages side by side, one thread each (default: number of cores, at most 4)
#   --dry-run     print the commands of every stage, run nothing
#
# Interrupt it anywhere and run it again: finished stages are skipped. It ends in OUT/index.md.
# Exit codes: 0 done, 1 a stage failed, 2 usage, 130 interrupted.
# shellcheck disable=SC2154  # OPT_… come from parse_options
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "checkpoint: data: prepared: task: train-lang: eval-langs: scale: out: jobs: dry-run" "$@"
out="${OPT_out:-results/diagnose}"
DRY_RUN="${OPT_dry_run:-0}"
JOBS="${OPT_jobs:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || sysctl -n hw.ncpu)}"
[[ "$JOBS" =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number, not $JOBS"
[[ -n "$OPT_jobs" ]] || JOBS=$((JOBS > 4 ? 4 : JOBS))
given="${OPT_checkpoint:+c}${OPT_data:+d}${OPT_prepared:+p}${OPT_train_lang:+t}${OPT_eval_langs:+e}"
[[ -z "$given$OPT_task" || "$given" == cdpte ]] ||
  die "--checkpoint, --data, --prepared, --train-lang and --eval-langs belong together (without them all is made here)"
task="${OPT_task:-ner}" source="${OPT_train_lang:-xa}" targets="${OPT_eval_langs:-xb,xc}"
[[ "$task" =~ ^(ner|pos|nli|qa)$ ]] || die "--task $task: ner, pos, nli or qa"

case "${OPT_scale:-full}" in
  full)
    sentences=4000 labelled="ner=800,150,150" concepts=800 vocabulary=1500 updates=600 epochs=6 every=10 validation=20
    batch=512 draws=5 seeds=1,2,3 mask_updates=300 probe_seeds=1,2 layers=()
    ;;
  smoke)
    sentences=300 labelled="ner=60,20,20" concepts=400 vocabulary=300 updates=10 epochs=2 every=2 validation=1
    batch=8 draws=2 seeds=1,2 mask_updates=4 probe_seeds=1 layers=(--layers 1 --probe freeze)
    ;;
  *) die "--scale $OPT_scale: smoke or full" ;;
esac

((DRY_RUN)) || mkdir -p "$out"
[[ ! -d "$out" ]] || out="$(cd "$out" && pwd)" # a later step may run in another folder
work="$out/work" LOGS="$out/work/logs"
data="${OPT_data:-$work/data-bin}" prepared="${OPT_prepared:-$work/prepared/ner}"
checkpoint="${OPT_checkpoint:-$work/pretrain/checkpoint_last.pt}"
# shellcheck source=run/jobs.sh
source "$ROOT/run/jobs.sh"

if ((!DRY_RUN)); then
  mkdir -p "$LOGS"
  plan="${OPT_scale:-full} $task $checkpoint $data $prepared $source $targets"
  if [[ -f "$work/plan.txt" && "$plan" != "$(<"$work/plan.txt")" ]]; then
    die "$out was begun with other settings: give another --out, or remove it"
  fi
  printf '%s\n' "$plan" >"$work/plan.txt"
  activate
fi
PYTHON="${PYTHON:-python3}"
export PYTHON PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
SECONDS=0
own=$((${#given} == 0))
jobs_total $((4 * own + 6))

# --- the stages ----------------------------------------------------------------------------------------------------

if ((own)); then
  inputs=()
  for lang in xa xb xc; do
    for split in train dev test; do inputs+=("$lang:$split:$work/world/ner/$lang/$split.tsv"); done
  done
  stage "world" "$work/world" "$PYTHON" -m data_prep.synthetic --out "$work/world" --langs xa,xb,xc --similarity 0.1 \
    --similarity-of xa:xc=0.6 --script-of xb=latin xc=latin --sentences "$sentences" --concepts "$concepts" \
    --labelled-of "$labelled" --seed 1
  barrier
  stage "prepare text" "$data/report.json" bash "$ROOT/data_prep/prepare.sh" --langs xa,xb,xc --raw "$work/world/raw" \
    --out "$data" --vocab-size "$vocabulary" --workers 1 --seed 1
  stage "prepare ner" "$prepared" "$PYTHON" -m data_prep.benchmarks.ner --out "$prepared" --input "${inputs[@]}"
  barrier
  stage "pretrain" "$work/pretrain" bash "$ROOT/run/pretrain.sh" --config "$ROOT/run/configs/quickstart/joint.yaml" \
    --data "$data" --save-dir "$work/pretrain" --set langs=xa,xb,xc encoder-layers=4 "max-update=$updates" \
    "total-num-update=$updates" "save-interval-updates=$((updates / 4))" keep-interval-updates=-1 "conflict-every=$every"
  barrier
fi

study() { # study NAME FLAGS…
  stage "$1" "$out/$1/$1.json" bash "$ROOT/run/diagnose.sh" "$@" --out "$out"
}

series=("$checkpoint")
if ((own)); then
  for ((update = updates / 4; update < updates; update += updates / 4)); do series+=("$work/pretrain/checkpoint_*_$update.pt"); done
  along=(--run "$work/pretrain")
fi
# shellcheck disable=SC2206  # patterns: the epoch in a checkpoint's name is not known before
((DRY_RUN)) || series=(${series[@]})
# shellcheck disable=SC2086
stage "finetune" "$work/finetune" bash "$ROOT/run/finetune_$( [[ $task == nli ]] && printf xnli || printf '%s' "$task").sh" \
  --data "$prepared" --train-lang "$source" --eval-langs "$targets" --checkpoint "$checkpoint" --seeds "$probe_seeds" \
  --splits dev --config "$ROOT/run/configs/tiny/$task.yaml" --set "max-epoch=$epochs" "gap-every=$validation" \
  --out "$work/finetune" --results "$work/results"
study gradients --checkpoint "${series[@]}" --data "$data" --sentences "$batch" --draws "$draws" "${along[@]+"${along[@]}"}"
study masks --checkpoint "$checkpoint" --data "$data" --seeds "$seeds" --updates "$mask_updates"
study layers --checkpoint "$checkpoint" --task "$task" --data "$prepared" --train-lang "$source" --eval-langs "$targets" \
  --seeds "$probe_seeds" "${layers[@]+"${layers[@]}"}"
barrier
runs=()
IFS=, read -ra some <<<"$probe_seeds"
for seed in "${some[@]}"; do runs+=("$work/finetune/seed$seed"); done
study gaps --run "${runs[@]}"
study cka --checkpoint "${runs[0]}" --against "$checkpoint" --data "$data"
barrier
if ((!DRY_RUN)); then "$PYTHON" -m fairseq_interference diagnose index --out "$out"; fi
