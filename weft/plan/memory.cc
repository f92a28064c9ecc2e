#include "weft/plan/memory.h"

#include <algorithm>
#include <map>

#include "weft/base/error.h"

namespace weft {

namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

// Best fit on a list of free ranges, in the order of time.
class FreeList {
 public:
  explicit FreeList(std::int64_t base) : end_(base) {}

  std::int64_t take(std::int64_t bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
    if (best == free_.end()) {
      // Grow: a free range at the very end is used and extended.
      std::int64_t at = end_;
      if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end_) {
        at = std::prev(free_.end())->first;
        free_.erase(std::prev(free_.end()));
      }
      end_ = at + bytes;
      return at;
    }
    const auto [at, size] = *best;
    free_.erase(best);
    if (size > bytes) free_.emplace(at + bytes, size - bytes);
    return at;
  }

  void give(std::int64_t at, std::int64_t bytes) {
    auto [it, inserted] = free_.emplace(at, bytes);
    WEFT_CHECK(inserted, "range at {} freed twice", at);
    if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      const auto previous = std::prev(it);
      if (previous->first + previous->second == it->first) {
        previous->second += it->second;
        free_.erase(it);
      }
    }
  }

  std::int64_t end() const { return end_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes
  std::int64_t end_;
};

}  // namespace

MemoryPlan plan_memory(const Plan& plan) {
  MemoryPlan memory;
  memory.offset.assign(plan.buffers.size(), -1);
  memory.lifetimes.resize(plan.buffers.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
      Lifetime& life = memory.lifetimes[use.buffer.index()];
      if (life.first < 0) life.first = static_cast<std::int32_t>(i);
      life.last = static_cast<std::int32_t>(i);
    }

  std::int64_t base = 0;
  std::vector<std::vector<std::int32_t>> begins(plan.nodes.size()), ends(plan.nodes.size());
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const ValueInfo& value = plan.values[plan.buffers[i].value.index()];
    const std::int64_t bytes = aligned(value.bytes);
    switch (value.storage) {
      case Storage::weight:
        memory.weights += bytes;
        break;
      case Storage::gradient:
        memory.gradients += bytes;
        break;
      case Storage::state:
        memory.states += bytes;
        break;
      case Storage::activation:
      case Storage::scratch:
        if (memory.lifetimes[i].first < 0) break;
        begins[static_cast<std::size_t>(memory.lifetimes[i].first)].push_back(static_cast<std::int32_t>(i));
        ends[static_cast<std::size_t>(memory.lifetimes[i].last)].push_back(static_cast<std::int32_t>(i));
        break;
      case Storage::step:
      case Storage::constant:
      case Storage::input:
      case Storage::output:
        memory.offset[i] = base;
        base += bytes;
        break;
    }
  }
  memory.step = base;

  FreeList arena(base);
  std::int64_t live = 0;
  const auto bytes_of = [&](std::int32_t buffer) { return aligned(plan.value_of(BufferId(buffer)).bytes); };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    // Large buffers first: they leave the fewest holes.
    std::stable_sort(begins[i].begin(), begins[i].end(), [&](auto a, auto b) { return bytes_of(a) > bytes_of(b); });
    for (std::int32_t buffer : begins[i]) {
      memory.offset[static_cast<std::size_t>(buffer)] = arena.take(bytes_of(buffer));
      live += bytes_of(buffer);
    }
    memory.live.push_back(live);
    for (std::int32_t buffer : ends[i]) {
      arena.give(memory.offset[static_cast<std::size_t>(buffer)], bytes_of(buffer));
      live -= bytes_of(buffer);
    }
  }
  memory.arena = arena.end();
  memory.activations = memory.arena - memory.step;
  return memory;
}

}  // namespace weft
