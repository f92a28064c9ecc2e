#!/usr/bin/env bash
# The operation tests of the CUDA device under compute-sanitizer, dealt out to several processes on one GPU:
#   tests/cuda/sanitize.sh BINARY [TOOL...]     TOOL: memcheck, racecheck (default: both)
# One line a process: tool, seconds, tests, result. Fails on any report, on a test that fails, and on a process that takes
# too long; what they said is printed at once. Kernels of libraries are theirs to check: racecheck instruments cuBLAS's whatever
# the choice of kernels says, and takes their hand-over of shared memory for races; such reports are counted, and fail nothing. Nor are
# errors of calls reported: ours check what they return, and cuBLASLt tries launches that fail.
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
ours=()
help=$("$sanitizer" --help 2>&1)
for option in --kernel-name --kernel-regex --filter; do
  if [[ $help == *"$option"* ]]; then ours=("$option" kns=weft "$option" kns=cutlass); break; fi
done

out=$(mktemp -d "${TMPDIR:-/tmp}/weft_sanitize.XXXXXX")
export out binary sanitizer seconds=${WEFT_SANITIZE_SECONDS:-220} ours="${ours[*]}" GTEST_TOTAL_SHARDS=$jobs
export CUDA_MODULE_LOADING=LAZY  # only what runs is instrumented
export WEFT_SANITIZE_BRIEF=1     # smaller products and attention, which take longest
export GTEST_FILTER=${WEFT_SANITIZE_TESTS:-*Operations.*:Products.*:Processors.*-Processors.Matmul}
one() {
  tool=$1 file=$out/$1.$2
  start=$(date +%s.%N)
  # shellcheck disable=SC2086 # several options
  GTEST_SHARD_INDEX=$2 timeout "$seconds" "$sanitizer" --tool "$tool" $ours --error-exitcode 1 --print-limit 10000 --report-api-errors no \
    "$binary" >"$file" 2>&1
  code=$?
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
  done=$(grep -c '^\[       OK \]' "$file")
  case $code in
    0) result=clean$note ;;
    124) result="not done in $seconds s, in $(grep '^\[ RUN' "$file" | tail -1 | cut -c14-)" ;;
    *) result="exit $code, $(grep -m1 -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$file" | sed 's/^=* *//')" ;;
  esac
  printf '%-9s %4s s  %2s tests  %s\n' "$tool" "$took" "$done" "$result" | tee -a "$out/lines"
  # Behind the name of the test in which it came.
  [ $code -eq 0 ] || grep -E '^\[ RUN|^=========|Failure|off by' "$file" | grep -v 'COMPUTE-SANITIZER' |
    awk '/^\[ RUN/ {test = $0; next} {if (test != "") print test; test = ""; print}' | head -30 | cut -c1-200
  return $((code != 0))
}
export -f one

failed=0
for tool in "${tools[@]}"; do
  seq 0 $((jobs - 1)) | xargs -P "$jobs" -I{} bash -c 'one "$@"' _ "$tool" {} || failed=1
done
[ $failed -eq 0 ] || sort "$out/lines"  # again, behind what was said
rm -rf "$out"
[ $failed -eq 0 ] || { echo "sanitize.sh: reports, failures or limits"; exit 1; }
echo "all clean: ${tools[*]}"
