#!/usr/bin/env bash
# The operation tests of the CUDA device under compute-sanitizer, one process per test, several at once on one GPU:
#   tests/device/cuda/sanitize.sh BINARY [TOOL...]     TOOL: memcheck, racecheck (default: both)
# Prints one line per test that is not clean, with the report; after each tool, how many were clean and which took longest.
# Fails on any report, on a test that fails, and on one that takes too long. Kernels of libraries are not ours to check:
# racecheck instruments those of cuBLAS whatever kernels are chosen, and takes their hand-over of shared memory for races;
# such reports are counted, but do not fail. Errors of calls are not reported: ours check what they return, and cuBLASLt
# tries launches that fail.
# WEFT_SANITIZE_JOBS (10): processes at once. WEFT_SANITIZE_SECONDS (220): limit for one. WEFT_SANITIZE_TESTS: a filter as
# of --gtest_filter; without it everything but whole models and products on some SMs, which are all cuBLAS's.
set -uo pipefail

binary=${1:?sanitize.sh BINARY [TOOL...]}
shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "sanitize.sh: no compute-sanitizer on PATH or in /usr/local/cuda/bin" >&2; exit 2; }
jobs=${WEFT_SANITIZE_JOBS:-10}

# How this version calls the choice of kernels by part of their name: ours, and those made of CUTLASS for us.
ours=
help=$("$sanitizer" --help 2>&1)
for option in --kernel-name --kernel-regex --filter; do
  if [[ $help == *"$option"* ]]; then ours="$option kns=weft $option kns=cutlass"; break; fi
done

out=$(mktemp -d "${TMPDIR:-/tmp}/weft_sanitize.XXXXXX")
export out binary sanitizer seconds=${WEFT_SANITIZE_SECONDS:-220} ours
export CUDA_MODULE_LOADING=LAZY  # only what runs is instrumented
export WEFT_SANITIZER=1          # smaller products and attention, which take longest
filter=${WEFT_SANITIZE_TESTS:-*Operations.*:Products.*:Processors.*-Processors.Matmul}
# Full names; the parametrized ones first, which take longest.
tests=$("$binary" --gtest_filter="$filter" --gtest_list_tests |
  awk '/^[^ ].*\./ {suite = $1; next} /^  / {print suite $1}' | LC_ALL=C sort -t/ -k1,1)
[ -n "$tests" ] || { echo "sanitize.sh: no test is called $filter" >&2; exit 2; }
one() {
  tool=$1 test=$2 file=$out/$1.${2//\//_}
  start=$(date +%s.%N)
  run() {
    timeout "$seconds" "$sanitizer" --tool "$tool" "$@" --error-exitcode 1 --print-limit 10000 --report-api-errors no \
      "$binary" --gtest_filter="$test" >"$file" 2>&1
  }
  # shellcheck disable=SC2086 # several options
  run $ours
  code=$?
  # racecheck breaks some kernels of cuBLASLt where it is to look at others only.
  if grep -q 'Internal Sanitizer Error' "$file"; then
    run
    code=$?
  fi
  # The lines of reports that name a kernel: of a library, or another.
  named=$(grep -E '(Race reported between|and) (Read|Write|Atomic)[a-z ]* access at ' "$file")
  foreign=$(grep -cE 'access at (void )?(nvjet_|cudnn|cublas)' <<<"$named")
  own=$(grep -vcE 'access at (void )?(nvjet_|cudnn|cublas)|^$' <<<"$named")
  note=
  if [ $code -eq 1 ] && [ "$tool" = racecheck ] && [ "$foreign" -gt 0 ] && [ "$own" -eq 0 ] && grep -q '^\[  PASSED  \]' "$file" &&
    ! grep -q '^\[  FAILED  \]' "$file"; then
    code=0 note=" (reports inside kernels of cuBLAS)"
  fi
  took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.0f", b - a}')
  case $code in
    0) result=clean$note
      grep -q '^\[  SKIPPED \]' "$file" && result="skipped: $(grep -A1 -m1 ': Skipped' "$file" | tail -1)" ;;
    124) result="not done in $seconds s" ;;
    *) result="exit $code, $(grep -m1 -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$file" | sed 's/^=* *//')" ;;
  esac
  line=$(printf '%-9s %4s s  %s  %s' "$tool" "$took" "$test" "$result")
  echo "$line" >>"$out/lines.$tool"
  [ $code -eq 0 ] && return 0
  echo "$line"
  grep -E '^=========|Failure|off by' "$file" | grep -v 'COMPUTE-SANITIZER' | head -30 | cut -c1-200
  return 1
}
export -f one

failed=0
for tool in "${tools[@]}"; do
  xargs -P "$jobs" -I{} bash -c 'one "$@"' _ "$tool" {} <<<"$tests" || failed=1
  echo "$tool: $(grep -c '  clean' "$out/lines.$tool") of $(wc -l <<<"$tests") tests clean, $(grep -c 'kernels of cuBLAS)' "$out/lines.$tool") of them with reports inside kernels of cuBLAS; longest:"
  sort -k2,2nr "$out/lines.$tool" | head -5
  grep '  skipped: ' "$out/lines.$tool"
done
rm -rf "$out"
[ $failed -eq 0 ] || { echo "sanitize.sh: reports, failures or limits"; exit 1; }
echo "all clean: ${tools[*]}"
