// For how long a GPU had something to do: the union of the times of all kernels, copies and fills, as CUPTI reports them.
// CUPTI is loaded when it is asked for; nothing here needs its headers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace weft {

struct GpuBusy {
  std::string why_not;  // "" if it was measured
  double busy = 0;      // seconds in which at least one of them ran
  double span = 0;      // from the first one's beginning to the last one's end
  std::size_t count = 0;
};

// Runs `prepare`, then `work`, which is measured; both must wait for the GPU in the end. (A CUDA graph must be made in
// `prepare`: nodes of one that was made before may not be reported.) Reporting costs the GPU about a microsecond per kernel,
// between kernels, so busy / span is a lower bound. CUPTI is gone afterwards: it would slow later launches.
inline GpuBusy measure_busy(const std::function<void()>& prepare, const std::function<void()>& work) {
  // What kernels, copies and fills have in common in every version since CUDA 9: kind, 12 bytes of their own, begin, end.
  struct Record {
    std::uint32_t kind, own[3];
    std::uint64_t start, end;  // nanoseconds
  };
  constexpr std::uint32_t copies = 1, fills = 2, kernels = 10;  // CUPTI_ACTIVITY_KIND_...
  // CUPTI calls back without a context.
  static int (*next_record)(std::uint8_t*, std::size_t, Record**) = nullptr;
  static std::mutex mutex;
  static std::vector<std::pair<std::uint64_t, std::uint64_t>> times;

  GpuBusy result;
  void* library = nullptr;
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/lib64/libcupti.so",
                           "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"})
    if ((library = dlopen(name, RTLD_NOW)) != nullptr) break;
  if (library == nullptr) {
    result.why_not = "there is no libcupti.so";
    return result;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) result.why_not = std::string("libcupti.so has no ") + name;
  };
  int (*enable)(std::uint32_t) = nullptr;
  int (*disable)(std::uint32_t) = nullptr;
  int (*flush)(std::uint32_t) = nullptr;
  int (*finalize)() = nullptr;
  int (*register_callbacks)(void (*)(std::uint8_t**, std::size_t*, std::size_t*),
                            void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t)) = nullptr;
  find("cuptiActivityEnable", enable);
  find("cuptiActivityDisable", disable);
  find("cuptiActivityFlushAll", flush);
  find("cuptiFinalize", finalize);
  find("cuptiActivityRegisterCallbacks", register_callbacks);
  find("cuptiActivityGetNextRecord", next_record);
  if (!result.why_not.empty()) return result;

  int code = register_callbacks(
      [](std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
        *size = std::size_t{8} << 20;
        *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
        *most = 0;
      },
      [](void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
        const std::scoped_lock lock(mutex);
        for (Record* record = nullptr; valid > 0 && next_record(buffer, valid, &record) == 0;)
          if (record->kind == copies || record->kind == fills || record->kind == kernels)
            times.emplace_back(record->start, record->end);
        std::free(buffer);
      });
  for (std::uint32_t kind : {copies, fills, kernels})
    if (code == 0) code = enable(kind);
  if (code == 0) {
    prepare();
    code = flush(1);
    {
      const std::scoped_lock lock(mutex);
      times.clear();
    }
    work();
    if (code == 0) code = flush(1);
  }
  for (std::uint32_t kind : {copies, fills, kernels}) disable(kind);
  finalize();
  if (code != 0) {
    result.why_not = "CUPTI fails with " + std::to_string(code);
    return result;
  }
  const std::scoped_lock lock(mutex);
  std::sort(times.begin(), times.end());
  result.count = times.size();
  if (times.empty()) {
    result.why_not = "CUPTI reports nothing";
    return result;
  }
  std::uint64_t until = times.front().first, busy = 0;
  for (const auto& [start, end] : times) {
    if (end > until) busy += end - std::max(start, until);
    until = std::max(until, end);
  }
  result.busy = static_cast<double>(busy) * 1e-9;
  result.span = static_cast<double>(until - times.front().first) * 1e-9;
  return result;
}

}  // namespace weft
