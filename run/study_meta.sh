#!/usr/bin/env bash
# Do meta-learned adapters help? Arms on two languages at equal updates and at equal compute, several seeds each, scored
# by validation loss and named entities; paired differences between arms.
#
# usage: bash run/study_meta.sh [--langs xa,xb --data DATA_BIN --ner PREPARED] [--scale full|smoke] [--out DIR]
#                               [--seeds 1,2,3] [--arms a,b] [--jobs N] [--set KEY=VALUE] [--dry-run]
#
#   --langs, --data, --ner  two languages, their data-bin and their prepared named entities;
#              without: two distant artificial languages, made here
#   --scale    full: 800 updates of 4 layers x 128, hours (default); smoke: seconds, its numbers mean nothing
#   --out      folder to work in (default: study/meta)
#   --seeds    seeds of pre-training (weights, batches, masks: the same in every arm) and of fine-tuning
#   --arms     some of: mono joint share_adpt adpt meta meta_direct meta_cross meta_half meta_sgd meta_whole
#              adpt_all joint_more adpt_more (default: all)
#   --set      one more setting of pre-training, KEY=VALUE (several: separated by blanks)
#   --jobs     stages side by side, one thread each (default: 1)
#   --dry-run  print the commands of every stage, run nothing
#
# Equal updates, and the same training batches per seed: mono (half the batch, all of its language), joint, share_adpt,
# adpt, meta (both terms), meta_direct, meta_cross, meta_half (half-size validation and cross batches),
# meta_sgd (the paper's inner step), meta_whole (an inner step of the whole rate). A tenth of the text is held out in all
# of these; only the meta arms use it.
# All the text: adpt_all (equal updates), joint_more and adpt_more (as many updates as meta's compute buys:
# at this size its update costs 3.2 of joint's and 2.9 of adpt's).
# Interrupt it anywhere and run it again: finished stages are skipped, a training goes on from its checkpoint.
# Exit codes: 0 done, 1 a stage failed, 2 usage, 130 interrupted.
# shellcheck disable=SC2154  # OPT_… come from parse_options
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "langs: data: ner: scale: out: seeds: arms: set: jobs: dry-run" "$@"
out="${OPT_out:-study/meta}"
IFS=, read -ra languages <<<"${OPT_langs:-xa,xb}"
IFS=, read -ra seeds <<<"${OPT_seeds:-1,2,3}"
IFS=', ' read -ra arms <<<"${OPT_arms:-mono,joint,share_adpt,adpt,adpt_all,joint_more,adpt_more,meta,meta_direct,meta_cross,meta_half,meta_sgd,meta_whole}"
read -ra extra <<<"$OPT_set"
DRY_RUN="${OPT_dry_run:-0}"
JOBS="${OPT_jobs:-1}"
[[ "$JOBS" =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number, not $JOBS"
((${#languages[@]} == 2)) || die "--langs takes two languages, not ${OPT_langs}"
for list in "${languages[*]}" "${seeds[*]}" "${arms[*]}"; do
  [[ -z "$(tr ' ' '\n' <<<"$list" | sort | uniq -d)" ]] || die "--langs, --seeds and --arms take each name once, not $list"
done
[[ -z "$OPT_data$OPT_ner$OPT_langs" || (-n "$OPT_data" && -n "$OPT_ner" && -n "$OPT_langs") ]] ||
  die "--langs, --data and --ner belong together (without them the languages are made here)"
for seed in "${seeds[@]}"; do [[ "$seed" =~ ^[0-9]+$ ]] || die "--seeds takes numbers such as 1,2,3, not $OPT_seeds"; done

case "${OPT_scale:-full}" in
  full) updates=800 more=(2560 2300) epochs=10 sentences=20000 concepts=1000 labelled="ner=1300,200,600" vocabulary=4000 lines=400 ;;
  smoke) updates=4 more=(7 6) epochs=2 sentences=300 concepts=400 labelled="ner=60,20,30" vocabulary=300 lines=10 ;;
  *) die "--scale $OPT_scale: smoke or full" ;;
esac
if [[ "${OPT_scale:-full}" == smoke ]]; then
  extra=(encoder-layers=2 encoder-embed-dim=32 encoder-ffn-embed-dim=64 batch-size=8 warmup-updates=1 "${extra[@]+"${extra[@]}"}")
fi
codes="${languages[0]},${languages[1]}"
batch="$(sed -n 's/^  batch-size: //p' "$ROOT/run/configs/study/meta.yaml")"
for setting in "${extra[@]+"${extra[@]}"}"; do [[ "$setting" != batch-size=* ]] || batch="${setting#*=}"; done

((DRY_RUN)) || mkdir -p "$out"
[[ ! -d "$out" ]] || out="$(cd "$out" && pwd)" # a later step may run in another folder
LOGS="$out/logs"
data="${OPT_data:-$out/data-bin}" ner="${OPT_ner:-$out/prepared/ner}"
# shellcheck source=run/jobs.sh
source "$ROOT/run/jobs.sh"

settings_of() { # settings_of ARM: what differs from run/configs/study/meta.yaml
  local all=(clip-norm=1.0 meta-heldout-fraction=0)
  local meta=(arch=xlm_meta_adpt adapter-dim=32 optimizer=meta_adapter meta-clip-theta=1.0 meta-clip-phi=1.0)
  case "$1" in
    mono) settings=(arch=xlm_mono clip-norm=1.0 "batch-size=$((batch / 2))") ;;
    joint) settings=(arch=xlm_joint clip-norm=1.0) ;;
    share_adpt | adpt) settings=("arch=xlm_$1" adapter-dim=32 clip-norm=1.0) ;;
    adpt_all) settings=(arch=xlm_adpt adapter-dim=32 "${all[@]}") ;;
    joint_more) settings=(arch=xlm_joint "${all[@]}" "max-update=${more[0]}" "total-num-update=${more[0]}") ;;
    adpt_more) settings=(arch=xlm_adpt adapter-dim=32 "${all[@]}" "max-update=${more[1]}" "total-num-update=${more[1]}") ;;
    meta) settings=("${meta[@]}") ;;
    meta_direct | meta_cross) settings=("${meta[@]}" "meta-terms=${1#meta_}") ;;
    meta_half) settings=("${meta[@]}" meta-val-batch-fraction=0.5 meta-cross-batch-fraction=0.5) ;;
    meta_sgd) settings=("${meta[@]}" meta-inner-rule=sgd meta-inner-lr=x1) ;;
    meta_whole) settings=("${meta[@]}" meta-inner-lr=x1) ;;
    *) die "--arms: there is no $1 (--help lists them)" ;;
  esac
}
for arm in "${arms[@]}"; do settings_of "$arm"; done

if ((!DRY_RUN)); then
  mkdir -p "$LOGS"
  plan="$codes ${OPT_scale:-full} $data $ner ${extra[*]+"${extra[*]}"}"$'\n'"$updates ${more[*]} $epochs"$'\n'
  plan+="$(cat "$ROOT"/run/configs/study/{meta,ner}.yaml)"
  if [[ -f "$out/plan.txt" && "$plan" != "$(<"$out/plan.txt")" ]]; then
    die "$out was begun with other settings: give another --out, or remove it"
  fi
  printf '%s\n' "$plan" >"$out/plan.txt"
  activate
fi
PYTHON="${PYTHON:-python3}"
export PYTHON PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
SECONDS=0
own=$((${#OPT_data} == 0))
monos=0 # a model for each of the two languages
for arm in "${arms[@]}"; do [[ "$arm" != mono ]] || monos=${#seeds[@]}; done
jobs_total $((3 * own + ${#arms[@]} * (3 * ${#seeds[@]} + 1) + monos))

if ((own)); then
  inputs=()
  for lang in "${languages[@]}"; do
    for split in train dev test; do inputs+=("$lang:$split:$out/world/ner/$lang/$split.tsv"); done
  done
  stage "world" "$out/world" "$PYTHON" -m data_prep.synthetic --out "$out/world" --langs "$codes" --similarity 0.1 \
    --sentences "$sentences" --concepts "$concepts" --labelled-of "$labelled" --seed 1
  barrier
  stage "prepare text" "$data/report.json" bash "$ROOT/data_prep/prepare.sh" --langs "$codes" --raw "$out/world/raw" \
    --out "$data" --vocab-size "$vocabulary" --workers 1 --seed 1
  stage "prepare ner" "$ner" "$PYTHON" -m data_prep.benchmarks.ner --out "$ner" --input "${inputs[@]}"
  barrier
fi

pretrain() { # pretrain ARM SEED LANGS FOLDER
  stage "pretrain ${4##*/}" "$4" bash "$ROOT/run/pretrain.sh" --config "$ROOT/run/configs/study/meta.yaml" --data "$data" \
    --save-dir "$4" --set "langs=$3" "max-update=$updates" "total-num-update=$updates" "${extra[@]+"${extra[@]}"}" \
    "${settings[@]}" "seed=$2"
}

finetune() { # finetune ARM SEED LANG CHECKPOINT: zero-shot as well where the model knows the other language
  local others=()
  [[ "$1" == mono ]] || others=(--eval-langs "$codes")
  stage "ner $1 $3 seed$2" "$out/ner/$1-$3-seed$2" bash "$ROOT/run/finetune_ner.sh" --checkpoint "$4" --data "$ner" \
    --train-lang "$3" "${others[@]+"${others[@]}"}" --seeds "$2" --splits test --config "$ROOT/run/configs/study/ner.yaml" \
    --set "max-epoch=$epochs" --out "$out/ner/$1-$3-seed$2" --results "$out/results/$1"
}

checkpoint_of() { # checkpoint_of ARM SEED LANG
  [[ "$1" == mono ]] && printf '%s' "$out/pretrain/$1-$3-seed$2/checkpoint_last.pt" ||
    printf '%s' "$out/pretrain/$1-seed$2/checkpoint_last.pt"
}

for seed in "${seeds[@]}"; do
  for arm in "${arms[@]}"; do
    settings_of "$arm"
    if [[ "$arm" == mono ]]; then
      for lang in "${languages[@]}"; do pretrain "$arm" "$seed" "$lang" "$out/pretrain/$arm-$lang-seed$seed"; done
    else
      pretrain "$arm" "$seed" "$codes" "$out/pretrain/$arm-seed$seed"
    fi
  done
done
barrier
for arm in "${arms[@]}"; do
  checkpoints=()
  for seed in "${seeds[@]}"; do
    for lang in "${languages[@]}"; do
      checkpoint="$(checkpoint_of "$arm" "$seed" "$lang")"
      [[ " ${checkpoints[*]-} " == *" $checkpoint "* ]] || checkpoints+=("$checkpoint")
    done
  done
  stage "loss $arm" "$out/loss/$arm-$(IFS=_ && printf '%s' "${seeds[*]}")" bash "$ROOT/run/evaluate.sh" --task mlm \
    --data "$data" --split valid --max-lines "$lines" --results "$out/results/$arm" --checkpoint "${checkpoints[@]}"
done
barrier
compare() { # once losses are there, and again with named entities
  local baselines=() arm
  for arm in adpt adpt_all adpt_more joint meta; do [[ ! -d "$out/results/$arm" ]] || baselines+=("$arm"); done
  ((DRY_RUN || ${#baselines[@]} == 0)) ||
    "$PYTHON" -m fairseq_interference compare --results "$out/results" --baseline "$(IFS=, && printf '%s' "${baselines[*]}")" \
      --out "$out"
}
compare
for seed in "${seeds[@]}"; do
  for arm in "${arms[@]}"; do
    for lang in "${languages[@]}"; do finetune "$arm" "$seed" "$lang" "$(checkpoint_of "$arm" "$seed" "$lang")"; done
  done
done
barrier
compare
