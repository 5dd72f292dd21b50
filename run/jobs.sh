# shellcheck shell=bash
# Stages side by side: sourced by quickstart.sh. Every stage has a log; the whole is interrupted cleanly.
#
#   jobs_total N            how many stages there are
#   stage NAME PATH CMD…    run CMD in the background unless PATH is done; waits while JOBS stages are running
#   barrier                 wait for all running stages
#
# Needs LOGS (folder), JOBS (number) and DRY_RUN (0|1). A stage that fails ends the script with exit code 1.

set -m # each stage is a process group of its own, so that it can be stopped as a whole, and hears SIGINT from us only

stage_pids=()
stage_names=()
stage_starts=()
stage_count=0
stage_total=0

jobs_total() { stage_total=$1; }

clock() { printf '%02d:%02d' $(($1 / 60)) $(($1 % 60)); }

progress() { # progress NAME TEXT: one line with how many stages are behind and the time since the start
  printf '[%2d/%d] %s  %-28s %s\n' "$stage_count" "$stage_total" "$(clock "$SECONDS")" "$1" "$2"
}

group_alive() { kill -0 -- "-$1" 2>/dev/null; }

stop_stages() { # a training finishes its update and saves on SIGTERM; everything else is redone from its last stage
  local pid
  for pid in "${stage_pids[@]+"${stage_pids[@]}"}"; do
    kill -TERM -- "-$pid" 2>/dev/null || true
  done
  local tries=0
  for pid in "${stage_pids[@]+"${stage_pids[@]}"}"; do
    while group_alive "$pid" && ((tries < 300)); do
      sleep 0.1
      tries=$((tries + 1))
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  stage_pids=()
}

interrupted() {
  trap '' INT TERM HUP
  printf '\ninterrupted after %d of %d stages: stopping\n' "$stage_count" "$stage_total" >&2
  stop_stages 2>/dev/null # without the notices of job control
  echo "run the same command again to go on" >&2
  exit 130
}
trap interrupted INT TERM HUP

failed() { # failed NAME CODE
  trap '' INT TERM HUP
  local log="$LOGS/${1// /-}.log"
  {
    echo "stage '$1' failed with exit code $2; the end of $log:"
    tail -n 25 "$log" | sed 's/^/    /'
  } >&2
  stop_stages 2>/dev/null # without the notices of job control
  exit 1
}

reap() { # take note of stages that have ended
  local i pid code
  local pids=() names=() starts=()
  for i in "${!stage_pids[@]}"; do
    pid=${stage_pids[i]}
    if kill -0 "$pid" 2>/dev/null; then
      pids+=("$pid") names+=("${stage_names[i]}") starts+=("${stage_starts[i]}")
      continue
    fi
    code=0
    wait "$pid" || code=$?
    if ((code != 0)); then
      unset 'stage_pids[i]'
      failed "${stage_names[i]}" "$code"
    fi
    stage_count=$((stage_count + 1))
    progress "${stage_names[i]}" "done in $((SECONDS - stage_starts[i])) s"
  done
  stage_pids=("${pids[@]+"${pids[@]}"}")
  stage_names=("${names[@]+"${names[@]}"}")
  stage_starts=("${starts[@]+"${starts[@]}"}")
}

wait_below() { # wait until fewer than $1 stages run
  while :; do
    reap
    ((${#stage_pids[@]} < $1)) && return
    sleep 0.1
  done
}

barrier() { wait_below 1; }

run_stage() { # run_stage MARK COMMAND…: writes the mark unless the command does so itself
  local mark=$1 begin=$SECONDS path=${1%/.done}
  shift
  mkdir -p "${path%/*}"
  if command -v flock >/dev/null; then # inherited by all processes of the stage; `status` looks for it
    exec 9>"${path%/*}/.${path##*/}.run.lock"
    flock -n 9 || { echo "another process is at this stage" && return 1; }
  fi
  "$@" || return
  [[ ! -e $mark ]] || return 0
  mkdir -p "${mark%/*}"
  printf '{"inputs": {}, "settings": {}, "seconds": %d}\n' $((SECONDS - begin)) >"$mark.tmp"
  mv "$mark.tmp" "$mark"
}

stage() { # stage NAME PATH COMMAND…; PATH is a folder, which is done when it holds .done, or a file
  local name=$1 mark=$2
  shift 2
  [[ ${mark##*/} == *.* ]] || mark=$mark/.done
  if ((DRY_RUN)); then
    printf '# %s\n' "$name"
    printf '%q ' "$@"
    printf '\n'
    return
  fi
  if [[ -e $mark ]]; then
    stage_count=$((stage_count + 1))
    progress "$name" "already done"
    return
  fi
  wait_below "$JOBS"
  local log="$LOGS/${name// /-}.log"
  {
    printf '$'
    printf ' %q' "$@"
    printf '\n'
  } >"$log"
  run_stage "$mark" "$@" >>"$log" 2>&1 </dev/null &
  stage_pids+=("$!")
  stage_names+=("$name")
  stage_starts+=("$SECONDS")
}
