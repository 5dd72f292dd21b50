#!/usr/bin/env bash
# From artificial text to a report: make four artificial languages, pre-train a joint model, one with adapters and
# a monolingual one per language, fine-tune each for named entities, evaluate, report.
#
# usage: bash run/quickstart.sh [--scale smoke|full] [--out DIR] [--jobs N] [--dry-run]
#
#   --scale    full: 15 minutes of CPU time (default); smoke: 2, mostly imports, its numbers mean nothing
#   --out      folder to work in (default: quickstart)
#   --jobs     stages side by side, one thread each (default: number of cores, at most 4)
#   --dry-run  print the commands of every stage, run nothing
#
# Interrupt it anywhere and run it again: finished stages are skipped, a training goes on from its checkpoint.
# Exit codes: 0 done, 1 a stage failed, 2 usage, 130 interrupted.
# shellcheck disable=SC2154  # OPT_… come from parse_options
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "scale: out: jobs: dry-run" "$@"
scale="${OPT_scale:-full}"
out="${OPT_out:-quickstart}"
DRY_RUN="${OPT_dry_run:-0}"
JOBS="${OPT_jobs:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || sysctl -n hw.ncpu)}"
[[ "$JOBS" =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number, not $JOBS"
[[ -n "$OPT_jobs" ]] || JOBS=$((JOBS > 4 ? 4 : JOBS))

case "$scale" in
  full)
    languages=(xa xb xc xd) sentences=8000 few=200 labelled="ner=1300,200,600" concepts=1000
    vocabulary=2000 updates=1000 epochs=8 seeds=1,2,3 lines=200
    ;;
  smoke)
    languages=(xa xb) sentences=300 few=100 labelled="ner=60,20,30" concepts=400
    vocabulary=300 updates=10 epochs=2 seeds=1 lines=10
    ;;
  *) die "--scale $scale: smoke or full" ;;
esac
codes="$(IFS=, && printf '%s' "${languages[*]}")" last="${languages[${#languages[@]} - 1]}"
world=(--langs "$codes" --similarity 0.3 --sentences "$sentences" --concepts "$concepts" --labelled-of "$labelled"
  --sentences-of "$last=$few" --similarity-of "${languages[0]}:$last=0.7" --seed 1) # little text, a big relative

((DRY_RUN)) || mkdir -p "$out"
[[ ! -d "$out" ]] || out="$(cd "$out" && pwd)" # a later step may run in another folder
LOGS="$out/logs"
data="$out/data-bin" prepared="$out/prepared/ner" results="$out/results"

# shellcheck source=run/jobs.sh
source "$ROOT/run/jobs.sh"

# --- the plan: name|path, in order; the folder may hold one plan only --------------------------------------------

models=(joint adpt "${languages[@]/#/mono-}")
plan=("world|world" "prepare text|data-bin/report.json" "prepare ner|prepared/ner")
for model in "${models[@]}"; do plan+=("pretrain $model|pretrain/$model"); done
plan+=("perplexity|perplexity")
for model in joint adpt; do
  for lang in "${languages[@]}"; do plan+=("finetune $model $lang|finetune/$model-$lang"); done
done
for lang in "${languages[@]}"; do plan+=("finetune mono $lang|finetune/mono-$lang"); done
plan+=("report|results/report.md")
jobs_total "${#plan[@]}"

plan_json() {
  local item comma=""
  printf '{\n  "settings": "%s %s updates=%s epochs=%s seeds=%s vocabulary=%s",\n  "stages": [' \
    "$scale" "${world[*]}" "$updates" "$epochs" "$seeds" "$vocabulary"
  for item in "${plan[@]}"; do
    printf '%s\n    {"name": "%s", "path": "%s"}' "$comma" "${item%|*}" "${item#*|}"
    comma=","
  done
  printf '\n  ]\n}\n'
}

path_of() { # the path of stage $1
  local item
  for item in "${plan[@]}"; do
    if [[ "${item%|*}" == "$1" ]]; then
      printf '%s/%s' "$out" "${item#*|}"
      return
    fi
  done
}

if ((!DRY_RUN)); then
  if [[ -f "$out/plan.json" && "$(plan_json)" != "$(<"$out/plan.json")" ]]; then
    die "$out was begun with other settings: give another --out, or remove it"
  fi
  mkdir -p "$LOGS"
  plan_json >"$out/plan.json"
  activate
fi
PYTHON="${PYTHON:-python3}"
export PYTHON PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
SECONDS=0

# --- the stages ----------------------------------------------------------------------------------------------------

do_stage() { # do_stage NAME COMMAND…
  stage "$1" "$(path_of "$1")" "${@:2}"
}

inputs=()
for lang in "${languages[@]}"; do
  for split in train dev test; do inputs+=("$lang:$split:$out/world/ner/$lang/$split.tsv"); done
done
do_stage "world" "$PYTHON" -m data_prep.synthetic --out "$out/world" "${world[@]}"
barrier
do_stage "prepare text" bash "$ROOT/data_prep/prepare.sh" --langs "$codes" --raw "$out/world/raw" --out "$data" \
  --vocab-size "$vocabulary" --workers 1 --seed 1
do_stage "prepare ner" "$PYTHON" -m data_prep.benchmarks.ner --out "$prepared" --input "${inputs[@]}"
barrier

checkpoints=()
for model in "${models[@]}"; do
  langs="$codes"
  [[ "$model" != mono-* ]] || langs="${model#mono-}"
  do_stage "pretrain $model" bash "$ROOT/run/pretrain.sh" --config "$ROOT/run/configs/quickstart/${model%%-*}.yaml" \
    --data "$data" --save-dir "$out/pretrain/$model" --set "langs=$langs" "max-update=$updates" \
    "total-num-update=$updates"
  checkpoints+=("$out/pretrain/$model/checkpoint_best.pt")
done
barrier

do_stage "perplexity" bash "$ROOT/run/evaluate.sh" --task mlm --data "$data" --split test --max-lines "$lines" \
  --results "$results" --checkpoint "${checkpoints[@]}"
for model in joint adpt mono; do
  for lang in "${languages[@]}"; do
    folder="$model" others=()
    [[ "$model" != mono ]] || folder="mono-$lang"
    if [[ "$model" != mono && "$lang" == "${languages[0]}" ]]; then
      others=(--eval-langs "$codes") # zero-shot: fine-tuned on the first language, scored in all
    fi
    do_stage "finetune $model $lang" bash "$ROOT/run/finetune_ner.sh" --data "$prepared" --train-lang "$lang" \
      "${others[@]+"${others[@]}"}" --checkpoint "$out/pretrain/$folder/checkpoint_best.pt" --seeds "$seeds" \
      --splits test --config "$ROOT/run/configs/quickstart/ner.yaml" --set "max-epoch=$epochs" \
      --out "$out/finetune/$model-$lang" --results "$results"
  done
done
barrier

((DRY_RUN)) || rm -f "$results/report.md" # its records may be newer
do_stage "report" bash "$ROOT/run/report.sh" --results "$results"
barrier
((DRY_RUN)) && exit 0
sed -n '/^## In words/,/^## /{/^## /d;p}' "$results/report.md"
printf 'report: %s\n' "$results/report.md"
