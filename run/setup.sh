#!/usr/bin/env bash
# Make the Python environment from setup.py and constraints.txt, or do nothing if it is there.
#
# Usage: bash run/setup.sh [--python PYTHON] [--force] [--quiet]
#
#   --python PYTHON   interpreter to build with (default: the first of python3.11, 3.12, 3.10, 3.9, python3 that runs)
#   --force           build anew
#   --quiet           print nothing when there is nothing to do
#
# The environment is .venv of this checkout. INTERFERENCE_VENV=FOLDER names another one: a new folder is built, an
# environment that you made yourself is used as it is (pip install -e . -c constraints.txt inside it first).
# It is built again when setup.py, constraints.txt, this script or the Python version change, or when a build was
# interrupted.
set -euo pipefail
# shellcheck source=run/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "python: force quiet" "$@"
VENV="$(environment_folder)"
STAMP="$VENV/.interference-pins"     # hash of what the environment was built from
BUILDING="$VENV/.interference-building" # there while a build is under way
LINKED="$VENV/.interference-root"    # checkout that the editable install points to

say() { [[ -n "$OPT_quiet" ]] || log "$*"; }

python_runs() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }

choose_python() {
  local candidate
  if [[ -n "$OPT_python" ]]; then
    python_runs "$OPT_python" || die "--python $OPT_python: not a Python 3.9 or newer ($("$OPT_python" --version 2>&1 || true))"
    printf '%s\n' "$OPT_python"
    return
  fi
  for candidate in python3.11 python3.12 python3.10 python3.9 python3 python; do
    if python_runs "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  die "no Python 3.9 or newer was found; found: $(python3 --version 2>&1 || echo none). Install Python 3.11, or give --python PATH"
}

pins_hash() { # of setup.py, constraints.txt, this script and the Python version
  "$1" - "$ROOT/setup.py" "$ROOT/constraints.txt" "$ROOT/run/setup.sh" <<'PY'
import hashlib, sys
digest = hashlib.sha256(sys.version.encode())
for name in sys.argv[1:]:
    digest.update(open(name, "rb").read())
print(digest.hexdigest())
PY
}

install_into() { # venv python, extra pip arguments …
  local python="$1" pins=()
  shift
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    pins=(-c "$ROOT/constraints.txt")
  else
    log "constraints.txt was proved on Python 3.11; on older Pythons pip chooses the versions"
    run "$python" -m pip install -q --disable-pip-version-check "pip<24.1"
  fi
  run "$python" -m pip install -q --disable-pip-version-check --no-compile "${pins[@]}" "$@"
}

build() { # with interpreter $1
  local begin=$SECONDS
  if [[ -e "$VENV" && ! -e "$VENV/pyvenv.cfg" && ! -e "$BUILDING" && -n "$(ls -A "$VENV")" ]]; then
    die "$VENV is there and is not a virtual environment: move it away, or set INTERFERENCE_VENV to another folder"
  fi
  log "building $VENV with $("$1" --version) (a few minutes, once)"
  rm -rf "${VENV:?}"
  mkdir -p "$VENV"
  touch "$BUILDING"
  run "$1" -m venv "$VENV"
  (cd "$ROOT" && install_into "$VENV/bin/python" -e '.[dev,plot]')
  # pip compiles on one core. Where Python may not write bytecode, every start would compile torch anew. The host
  # warns when it is compiled, here to nobody; a file for another Python does not compile.
  "$VENV/bin/python" -W ignore -m compileall -qq -j 0 "$VENV"/lib/python3*/site-packages || true
  printf '%s\n' "$ROOT" >"$LINKED"
  pins_hash "$VENV/bin/python" >"$STAMP"
  rm -f "$BUILDING"
  log "environment ready in $((SECONDS - begin)) s: $VENV"
}

check_existing() {
  local python="$VENV/bin/python"
  [[ -x "$python" ]] || die "INTERFERENCE_VENV=$VENV holds no bin/python"
  "$python" -c 'import fairseq, torch, sacremoses, subword_nmt, sentencepiece, yaml' 2>/dev/null ||
    die "INTERFERENCE_VENV=$VENV lacks packages. Run there: $python -m pip install -e '${ROOT}[dev,plot]' -c $ROOT/constraints.txt"
}

main() {
  if [[ -n "${INTERFERENCE_VENV:-}" && -e "$VENV/pyvenv.cfg" && ! -e "$STAMP" && ! -e "$BUILDING" ]]; then
    check_existing
    say "using the environment that is there: $VENV"
    return
  fi
  if [[ -z "$OPT_force" && -e "$STAMP" && ! -e "$BUILDING" && -x "$VENV/bin/python" ]] &&
    [[ -z "$OPT_python" && "$(cat "$STAMP")" == "$(pins_hash "$VENV/bin/python")" ]]; then
    if [[ "$(cat "$LINKED" 2>/dev/null)" != "$ROOT" ]]; then
      log "$VENV served $(cat "$LINKED" 2>/dev/null || echo no checkout); from now on it serves $ROOT"
      (cd "$ROOT" && run "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps -e .)
      printf '%s\n' "$ROOT" >"$LINKED"
    fi
    say "the environment is there: $VENV"
    return
  fi
  local python
  python="$(choose_python)"
  build "$python"
}

mkdir -p "$(dirname "$VENV")"
if command -v flock >/dev/null; then # two runs at once build once
  exec 9>"$VENV.lock"
  flock 9
fi
main
