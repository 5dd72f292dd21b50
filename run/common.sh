# shellcheck shell=bash
# Sourced by every script here: environment, logging, named arguments.
#
# A script that sources this file begins with a header comment; --help prints it. It calls
#   parse_options "config: gpus: dry-run" "$@"     # NAME: takes a value, NAME is a switch
# and finds OPT_config, OPT_gpus and OPT_dry_run (1 for a switch, empty where not given), and REST (after --).

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export ROOT
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

log() { printf '%s | %s\n' "$(date '+%H:%M:%S')" "$*" >&2; }

# A user's mistake: one line on stderr, exit code 2.
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# Something went wrong: one line on stderr, exit code 1.
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The header comment of the script that was started.
usage() {
  awk 'NR == 1 && /^#!/ { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$0"
}

# Log a command as it would be typed, then run it. With --dry-run it is only logged.
run() {
  local line
  printf -v line '%q ' "$@"
  printf '+ %s\n' "${line% }" >&2
  if [[ -z "${OPT_dry_run:-}" ]]; then
    "$@"
  fi
}

# Named arguments: --name VALUE, --name=VALUE and switches; everything after -- lands in REST.
parse_options() {
  local specification=" $1 " name value
  shift
  REST=()
  for name in $specification; do
    name="${name%:}"
    printf -v "OPT_${name//-/_}" '%s' ""
  done
  while (($#)); do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --)
        shift
        # shellcheck disable=SC2034  # read by the script that sources this file
        REST=("$@")
        return
        ;;
      --*)
        name="${1%%=*}"
        name="${name#--}"
        if [[ "$specification" == *" $name: "* ]]; then
          if [[ "$1" == *=* ]]; then
            value="${1#*=}"
          else
            (($# >= 2)) || die "--$name needs a value (--help shows the usage)"
            value="$2"
            shift
          fi
          printf -v "OPT_${name//-/_}" '%s' "$value"
        elif [[ "$specification" == *" $name "* && "$1" != *=* ]]; then
          printf -v "OPT_${name//-/_}" '%s' 1
        else
          die "unknown option $1 (--help shows the usage)"
        fi
        ;;
      *) die "unexpected argument $1 (arguments are named; --help shows the usage)" ;;
    esac
    shift
  done
}

# The environment to work in: INTERFERENCE_VENV if given, else .venv of this checkout.
environment_folder() { printf '%s\n' "${INTERFERENCE_VENV:-$ROOT/.venv}"; }

# Set the environment up if needed (quick when it is there) and put it first on PATH; sets PYTHON.
activate() {
  bash "$ROOT/run/setup.sh" --quiet
  VIRTUAL_ENV="$(environment_folder)"
  PATH="$VIRTUAL_ENV/bin:$PATH"
  PYTHON="$VIRTUAL_ENV/bin/python"
  export VIRTUAL_ENV PATH PYTHON
  unset PYTHONHOME
}

# The rest of a thin script: --help prints its header, everything else goes to python -m $1 (a module, or with a verb).
exec_module() {
  local -a module
  read -ra module <<<"$1"
  shift
  if [[ $# -eq 0 || "$1" == "-h" || "$1" == "--help" ]]; then
    usage
    exit $(($# ? 0 : 2))
  fi
  [[ -n "${PYTHON:-}" ]] || activate
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
  exec "$PYTHON" -m "${module[@]}" "$@"
}

# What to give to --user-dir: always the folder that Python itself would import.
user_dir() { "$PYTHON" -m fairseq_interference where; }
