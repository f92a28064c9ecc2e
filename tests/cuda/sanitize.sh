#!/usr/bin/env bash
# The operation tests of the CUDA device under compute-sanitizer, a process a test, many at once on one GPU:
#   tests/cuda/sanitize.sh BINARY [TOOL...]     TOOL: memcheck, racecheck (default: both)
# One line a test: tool, seconds, result. Fails on any report, on a test that fails, and on one that takes too long;
# their output stays in the folder that is named at the end. Kernels of libraries run as they are: theirs to check.
# WEFT_SANITIZE_JOBS (12): processes at once. WEFT_SANITIZE_SECONDS (200): limit for a test. WEFT_SANITIZE_TESTS: a
# filter as of --gtest_filter; without it everything but whole models.
set -uo pipefail

binary=${1:?sanitize.sh BINARY [TOOL...]}
shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "sanitize.sh: no compute-sanitizer on PATH or in /usr/local/cuda/bin" >&2; exit 2; }
filter=${WEFT_SANITIZE_TESTS:-*Operations.*:Products.*:Processors.*}

# "Suite.Test" of every test; parameterised ones come with their value behind a #.
tests=$("$binary" --gtest_list_tests --gtest_filter="$filter" |
  awk '/^[^ ].*\./ {suite = $1; next} /^  / {print suite $1}')
[ -n "$tests" ] || { echo "sanitize.sh: no test matches $filter" >&2; exit 2; }

# How this version calls the choice of kernels by part of their name: ours, and those made of CUTLASS for us.
ours=()
for option in --kernel-name --kernel-regex --filter; do
  if "$sanitizer" --help 2>&1 | grep -q -- "$option\b"; then ours=("$option" kns=weft "$option" kns=cutlass); break; fi
done

out=$(mktemp -d "${TMPDIR:-/tmp}/weft_sanitize.XXXXXX")
export out binary sanitizer seconds=${WEFT_SANITIZE_SECONDS:-200} ours="${ours[*]}"
one() {
  tool=$1 test=$2 file=$out/$1.${2//\//_}
  start=$(date +%s.%N)
  # shellcheck disable=SC2086 # several options
  timeout "$seconds" "$sanitizer" --tool "$tool" $ours --error-exitcode 1 --print-limit 20 "$binary" --gtest_filter="$test" \
    >"$file" 2>&1
  code=$?
  took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  case $code in
    0) result=clean ;;
    124) result="not done in $seconds s" ;;
    *) result="exit $code, $(grep -m1 -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$file" | sed 's/^=* *//')" ;;
  esac
  printf '%-9s %6s s  %-55s %s\n' "$tool" "$took" "$test" "$result"
  [ $code -eq 0 ] && rm -f "$file"
  return $((code != 0))
}
export -f one

failed=0
for tool in "${tools[@]}"; do
  printf '%s\n' $tests | xargs -P "${WEFT_SANITIZE_JOBS:-12}" -I{} bash -c 'one "$@"' _ "$tool" {} || failed=1
done
if [ $failed -ne 0 ]; then
  for file in "$out"/*; do
    echo "--- $file"
    grep -v '^\[' "$file" | head -25 | cut -c1-240
  done
  echo "sanitize.sh: reports, failures or limits; their output is in $out"
  exit 1
fi
rmdir "$out"
echo "all clean: ${tools[*]}"
