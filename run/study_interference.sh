#!/usr/bin/env bash
# Does corpus size, or how alike the languages are, explain negative interference? Small models, several seeds each,
# scored by validation loss and named entities; paired differences to the monolingual model.
#
# usage: bash run/diagnose.sh corpus-size|similarity [--langs xa,xb[,…] --raw DIR --ner PREPARED] [--scale full|smoke]
#                             [--out DIR] [--seeds 1,2,3] [--low N] [--third xf] [--set KEY=VALUE] [--jobs N] [--dry-run]
#
#   corpus-size  the first language with the second one, in full and cut to --low lines; each alone and both together
#   similarity   the first language alone, with each of the others, and with the second and --third
#   --langs, --raw, --ner  languages, their text (data_prep/prepare.sh) and their prepared named entities;
#                without: artificial languages whose similarity is known
#   --scale    full: 800 updates of 4 layers x 128, hours (default); smoke: two minutes, its numbers mean nothing
#   --out      folder of studies (default: results/diagnose); the models are in OUT/STUDY/work
#   --seeds    seeds of pre-training and of fine-tuning
#   --low      corpus-size: lines of the low-resource version (default: a fiftieth of the artificial text)
#   --third    similarity: a language like the first, for a model of three (default: the last; none: no such model)
#   --set      one more setting of pre-training, KEY=VALUE (several: separated by blanks)
#   --jobs     stages side by side, one thread each (default: 1)
#   --dry-run  print the commands of every stage, run nothing
#
# All models train for the same updates, with equal shares of their languages and batches that grow with their number, so
# that a language gets as much text in each. One dictionary serves all. Interrupted, it goes on behind finished stages.
# Exit codes: 0 done, 1 a stage failed, 2 usage, 130 interrupted.
# shellcheck disable=SC2154  # OPT_… come from parse_options
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  corpus-size | similarity) study="$1" && shift ;;
  -h | --help) usage && exit 0 ;;
  *) usage && exit 2 ;;
esac
parse_options "langs: raw: ner: scale: out: seeds: low: third: set: jobs: dry-run" "$@"
out="${OPT_out:-results/diagnose}"
IFS=, read -ra seeds <<<"${OPT_seeds:-1,2,3}"
read -ra extra <<<"$OPT_set"
DRY_RUN="${OPT_dry_run:-0}"
JOBS="${OPT_jobs:-1}"
[[ "$JOBS" =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number, not $JOBS"
for seed in "${seeds[@]}"; do [[ "$seed" =~ ^[0-9]+$ ]] || die "--seeds takes numbers such as 1,2,3, not $OPT_seeds"; done
[[ -z "$OPT_langs$OPT_raw$OPT_ner" || (-n "$OPT_langs" && -n "$OPT_raw" && -n "$OPT_ner") ]] ||
  die "--langs, --raw and --ner belong together (without them the languages are made here)"

case "${OPT_scale:-full}" in
  full) updates=800 every=100 epochs=10 sentences=20000 low=400 concepts=1000 labelled="ner=1300,200,600" vocabulary=4000 lines=400 batches=256 ;;
  smoke) updates=4 every=2 epochs=2 sentences=300 low=60 concepts=400 labelled="ner=60,20,30" vocabulary=300 lines=10 batches=8 ;;
  *) die "--scale $OPT_scale: smoke or full" ;;
esac
if [[ "${OPT_scale:-full}" == smoke ]]; then
  extra=(encoder-layers=2 encoder-embed-dim=32 encoder-ffn-embed-dim=64 batch-size=8 warmup-updates=1 "${extra[@]+"${extra[@]}"}")
fi
low="${OPT_low:-$low}"
[[ "$low" =~ ^[1-9][0-9]*$ ]] || die "--low takes a number of lines, not $low"
if [[ "$study" == similarity ]]; then
  made=xa,xb,xc,xd,xe,xf,xg
  [[ "${OPT_scale:-full}" != smoke ]] || made=xa,xb,xc
  IFS=, read -ra languages <<<"${OPT_langs:-$made}"
  ((${#languages[@]} >= 3)) || die "similarity needs a language and at least two to pair it with, not ${OPT_langs}"
  third="${OPT_third:-${languages[${#languages[@]} - 1]}}"
  [[ "$third" == none || (" ${languages[*]} " == *" $third "* && "$third" != "${languages[0]}" && "$third" != "${languages[1]}") ]] ||
    die "--third is one of --langs but not of the first two, or none; not $third"
else
  IFS=, read -ra languages <<<"${OPT_langs:-xa,xb}"
  ((${#languages[@]} == 2)) || die "corpus-size takes two languages, not ${OPT_langs}"
fi
[[ -z "$(printf '%s\n' "${languages[@]}" "" "${seeds[@]}" | sort | uniq -d)" ]] || die "--langs and --seeds take each name once"
codes="$(IFS=, && printf '%s' "${languages[*]}")" first="${languages[0]}" second="${languages[1]}"
batch="$(sed -n 's/^  batch-size: //p' "$ROOT/run/configs/study/interference.yaml")"
for setting in "${extra[@]+"${extra[@]}"}"; do [[ "$setting" != batch-size=* ]] || batch="${setting#*=}"; done

work="$out/$study/work"
((DRY_RUN)) || mkdir -p "$work"
[[ ! -d "$out" ]] || out="$(cd "$out" && pwd)" # a later step may run in another folder
work="$out/$study/work" LOGS="$out/$study/work/logs"
raw="${OPT_raw:-$work/world/raw}" ner="${OPT_ner:-$work/prepared/ner}"
# shellcheck source=run/jobs.sh
source "$ROOT/run/jobs.sh"

# --- the models: name|languages|data -------------------------------------------------------------------------------

models=("mono-$first|$first|full")
if [[ "$study" == similarity ]]; then
  for lang in "${languages[@]:1}"; do models+=("pair-$lang|$first,$lang|full"); done
  [[ "$third" == none ]] || models+=("three|$first,$second,$third|full")
else
  models+=("mono-$second-full|$second|full" "mono-$second-low|$second|low")
  models+=("pair-full|$first,$second|full" "pair-low|$first,$second|low")
fi

# Artificial languages: one script, order and morphology for all but the first, so that only the lexicon differs. Two
# that share a and b of their words with the first share a x b with each other: any numbers go together then.
shares=(1 0 0.15 0.3 0.45 0.6 0.75)
[[ "$study" == similarity ]] || shares=(1 0.1)
of=() pairs=()
for number in "${!languages[@]}"; do
  ((number == 0)) || of+=("${languages[number]}")
  for ((other = 0; other < number; other++)); do
    pairs+=("${languages[other]}:${languages[number]}=$(awk "BEGIN { print ${shares[other]:-0.1} * ${shares[number]:-0.1} }")")
  done
done
world=(--langs "$codes" --sentences "$sentences" --concepts "$concepts" --labelled-of "$labelled" --seed 1
  --script-of "${of[@]/%/=latin}" --order-of "${of[@]/%/=SOV}" --morphology-of "${of[@]/%/=suffixing}"
  --similarity-of "${pairs[@]}")

if ((!DRY_RUN)); then
  mkdir -p "$LOGS"
  plan="$study $codes ${third:-} ${OPT_scale:-full} $raw $ner $low ${extra[*]+"${extra[*]}"}"$'\n'"$updates $epochs"$'\n'
  plan+="$(cat "$ROOT"/run/configs/study/{interference,ner}.yaml)"
  if [[ -f "$work/plan.txt" && "$plan" != "$(<"$work/plan.txt")" ]]; then
    die "$work was begun with other settings: give another --out, or remove it"
  fi
  printf '%s\n' "$plan" >"$work/plan.txt"
  activate
fi
PYTHON="${PYTHON:-python3}"
export PYTHON PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
SECONDS=0
own=$((${#OPT_raw} == 0)) cut=0
[[ "$study" == similarity ]] || cut=1
count=0 # models and languages to fine-tune them on, for each seed
for model in "${models[@]}"; do
  IFS='|' read -r _ langs _ <<<"$model"
  IFS=, read -ra some <<<"$langs"
  count=$((count + 1 + ${#some[@]}))
done
jobs_total $((2 * own + 1 + cut + ${#models[@]} + ${#seeds[@]} * count + (1 - cut) * (${#models[@]} - 1)))

# --- the stages ----------------------------------------------------------------------------------------------------

if ((own)); then
  inputs=()
  for lang in "${languages[@]}"; do
    for split in train dev test; do inputs+=("$lang:$split:$work/world/ner/$lang/$split.tsv"); done
  done
  stage "world" "$work/world" "$PYTHON" -m data_prep.synthetic --out "$work/world" "${world[@]}"
  barrier
  stage "prepare ner" "$ner" "$PYTHON" -m data_prep.benchmarks.ner --out "$ner" --input "${inputs[@]}"
fi
prepare=(bash "$ROOT/data_prep/prepare.sh" --langs "$codes" --raw "$raw" --workers 1 --seed 1)
stage "prepare text full" "$work/data/full/report.json" "${prepare[@]}" --out "$work/data/full" --vocab-size "$vocabulary"
barrier
((!cut)) || stage "prepare text low" "$work/data/low/report.json" "${prepare[@]}" --out "$work/data/low" \
  --tokenizer-from "$work/data/full" --max-lines "$second=$low"
barrier

for seed in "${seeds[@]}"; do
  for model in "${models[@]}"; do
    IFS='|' read -r name langs size <<<"$model"
    IFS=, read -ra some <<<"$langs"
    arch=xlm_joint
    ((${#some[@]} > 1)) || arch=xlm_mono
    folder="$work/pretrain/$name-seed$seed"
    stage "pretrain $name-seed$seed" "$folder" bash "$ROOT/run/pretrain.sh" --config "$ROOT/run/configs/study/interference.yaml" \
      --data "$work/data/$size" --save-dir "$folder" --set "langs=$langs" "arch=$arch" "max-update=$updates" \
      "total-num-update=$updates" "validate-interval-updates=$every" "${extra[@]+"${extra[@]}"}" \
      "batch-size=$((batch * ${#some[@]} / 2))" "seed=$seed"
  done
done
barrier
for model in "${models[@]}"; do
  IFS='|' read -r name langs _ <<<"$model"
  checkpoints=()
  for seed in "${seeds[@]}"; do checkpoints+=("$work/pretrain/$name-seed$seed/checkpoint_last.pt"); done
  stage "loss $name" "$work/loss/$name-$(IFS=_ && printf '%s' "${seeds[*]}")" bash "$ROOT/run/evaluate.sh" --task mlm \
    --data "$work/data/full" --split valid --max-lines "$lines" --results "$work/results/$name" --checkpoint "${checkpoints[@]}"
  if [[ "$study" == similarity && "$langs" == *,* ]]; then
    stage "conflict $name" "$work/conflict/$name/gradients/gradients.json" bash "$ROOT/run/diagnose.sh" gradients \
      --checkpoint "${checkpoints[@]}" --data "$work/data/full" --sentences "$batches" --draws 3 --out "$work/conflict/$name"
  fi
done
barrier
for seed in "${seeds[@]}"; do
  for model in "${models[@]}"; do
    IFS='|' read -r name langs _ <<<"$model"
    IFS=, read -ra some <<<"$langs"
    for lang in "${some[@]}"; do
      others=()
      ((${#some[@]} == 1)) || others=(--eval-langs "$langs")
      target="$work/ner/$name-$lang-seed$seed"
      stage "ner $name $lang seed$seed" "$target" bash "$ROOT/run/finetune_ner.sh" --data "$ner" --train-lang "$lang" \
        --checkpoint "$work/pretrain/$name-seed$seed/checkpoint_last.pt" "${others[@]+"${others[@]}"}" --seeds "$seed" \
        --splits test --config "$ROOT/run/configs/study/ner.yaml" --set "max-epoch=$epochs" --out "$target" \
        --results "$work/results/$name"
    done
  done
done
barrier

compare=()
if [[ "$study" == similarity ]]; then
  for lang in "${languages[@]:1}"; do compare+=("$first:pair-$lang:mono-$first"); done
  [[ "$third" == none ]] || compare+=("$first:three:pair-$second" "$second:three:pair-$second")
  more=(--conflict "$work/conflict")
  ((!own)) || more+=(--truth "$work/world/truth.json")
else
  compare+=("$second:pair-full:mono-$second-full" "$second:pair-low:mono-$second-low")
  compare+=("$first:pair-full:mono-$first" "$first:pair-low:mono-$first" "$first:pair-low:pair-full")
  more=()
fi
report=("$PYTHON" -m fairseq_interference diagnose "$study" --results "$work/results" --runs "$work/pretrain"
  --compare "${compare[@]}" "${more[@]+"${more[@]}"}" --out "$out")
if ((DRY_RUN)); then
  printf '%q ' "${report[@]}" && printf '\n'
else
  "${report[@]}"
fi
