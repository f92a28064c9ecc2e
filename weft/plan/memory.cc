#include "weft/plan/memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include "weft/base/error.h"

namespace weft {

namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

// A list of free ranges, in the order of the nodes. Ranges remember their last users.
class FreeList {
 public:
  explicit FreeList(std::int64_t base) : end_(base) {}

  // The range that fits best. known_done: where the node that takes it over should not wait for others, what is known to be
  // done then; it gets the best fit among the ranges whose users are done, and if there is none, the range whose users
  // come first in the list, since they are likely to be done.
  std::int64_t take(std::int64_t bytes, const LaneMarks* known_done, LaneMarks& users) {
    auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return grow(bytes, users);
    if (known_done) {
      std::int32_t least = std::numeric_limits<std::int32_t>::max();
      for (auto at = best; at != by_size_.end() && least >= 0; ++at)
        if (const std::int32_t user = last_user_to_wait_for(ranges_.at(at->second).users, *known_done); user < least) {
          best = at;
          least = user;
        }
    }
    const std::int64_t at = best->second;
    const Range range = ranges_.at(at);
    remove(at);
    if (range.bytes > bytes) insert(at + bytes, {range.bytes - bytes, range.users});
    users = range.users;
    return at;
  }

  void give(std::int64_t at, std::int64_t bytes, const LaneMarks& users) {
    Range range{bytes, users};
    auto next = ranges_.lower_bound(at);
    WEFT_CHECK(next == ranges_.end() || next->first >= at + bytes, "range at {} freed twice", at);
    if (next != ranges_.end() && next->first == at + bytes) {
      range.bytes += next->second.bytes;
      join(range.users, next->second.users);
      remove(next->first);
    }
    next = ranges_.lower_bound(at);
    if (next != ranges_.begin()) {
      const auto [before, previous] = *std::prev(next);
      if (before + previous.bytes == at) {
        range.bytes += previous.bytes;
        join(range.users, previous.users);
        remove(before);
        at = before;
      }
    }
    insert(at, range);
  }

  std::int64_t end() const { return end_; }

 private:
  struct Range {
    std::int64_t bytes;
    LaneMarks users;
  };

  // -1: all are done.
  static std::int32_t last_user_to_wait_for(const LaneMarks& users, const LaneMarks& now) {
    std::int32_t last = -1;
    for (std::size_t lane = 0; lane < lane_count; ++lane)
      if (users[lane] > now[lane]) last = std::max(last, users[lane]);
    return last;
  }
  // Nothing fits: extends the free range at the end, if there is one.
  std::int64_t grow(std::int64_t bytes, LaneMarks& users) {
    std::int64_t at = end_;
    users = no_marks;
    if (!ranges_.empty()) {
      const auto [last, range] = *std::prev(ranges_.end());
      if (last + range.bytes == end_) {
        at = last;
        users = range.users;
        remove(last);
      }
    }
    end_ = at + bytes;
    return at;
  }
  void insert(std::int64_t at, const Range& range) {
    ranges_.emplace(at, range);
    by_size_.emplace(range.bytes, at);
  }
  void remove(std::int64_t at) {
    const auto it = ranges_.find(at);
    by_size_.erase({it->second.bytes, at});
    ranges_.erase(it);
  }

  std::map<std::int64_t, Range> ranges_;  // by offset
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t end_;
};

}  // namespace

MemoryPlan plan_memory(const Plan& plan) {
  MemoryPlan memory;
  memory.offset.assign(plan.buffers.size(), -1);
  memory.host_offsets.assign(plan.buffers.size(), -1);
  memory.lifetimes.resize(plan.buffers.size());
  std::vector<LaneMarks> users(plan.buffers.size(), no_marks);
  std::vector<bool> written(plan.buffers.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
      Lifetime& life = memory.lifetimes[use.buffer.index()];
      if (life.first < 0) life.first = static_cast<std::int32_t>(i);
      life.last = static_cast<std::int32_t>(i);
      users[use.buffer.index()][static_cast<std::size_t>(plan.nodes[i].lane)] = static_cast<std::int32_t>(i);
      if (use.access != Access::read) written[use.buffer.index()] = true;
    }

  std::array<std::vector<std::size_t>, 3> fixed;  // from the host, other step values, the rest
  std::vector<std::vector<std::int32_t>> begins(plan.nodes.size()), ends(plan.nodes.size());
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const ValueInfo& value = plan.values[plan.buffers[i].value.index()];
    const std::int64_t bytes = aligned(value.bytes);
    switch (value.storage) {
      case StorageClass::weight:
        memory.weights += bytes;
        break;
      case StorageClass::gradient:
        memory.gradients += bytes;
        break;
      case StorageClass::state:
        memory.states += bytes;
        break;
      case StorageClass::activation:
      case StorageClass::scratch:
      case StorageClass::gathered:
      case StorageClass::partial:
        if (memory.lifetimes[i].first < 0) break;
        begins[static_cast<std::size_t>(memory.lifetimes[i].first)].push_back(static_cast<std::int32_t>(i));
        ends[static_cast<std::size_t>(memory.lifetimes[i].last)].push_back(static_cast<std::int32_t>(i));
        break;
      case StorageClass::input:
        fixed[0].push_back(i);
        break;
      case StorageClass::step:
        fixed[written[i] ? 1 : 0].push_back(i);
        break;
      case StorageClass::constant:
      case StorageClass::output:
        fixed[2].push_back(i);
        break;
      case StorageClass::host:
        memory.host_offsets[i] = memory.host;
        memory.host += bytes;
        break;
    }
  }
  std::int64_t base = 0;
  const auto place = [&](const std::vector<std::size_t>& buffers) {
    for (std::size_t i : buffers) {
      memory.offset[i] = base;
      base += aligned(plan.values[plan.buffers[i].value.index()].bytes);
    }
    return base;
  };
  memory.inputs_end = place(fixed[0]);
  memory.step_values_end = place(fixed[1]);
  memory.step = place(fixed[2]);

  // Memory is free again where its users are known to be done, by the lane that has got there. Another lane may have to
  // wait for them before it takes the memory over; take() avoids that where it can.
  const std::vector<LaneMarks> waits = lane_waits_by_use(plan);
  LaneClocks clocks(plan.nodes.size());
  struct Freed {
    std::int32_t buffer;
    std::int64_t bytes;
  };
  std::vector<Freed> pending;

  FreeList arena(base);
  std::int64_t live = 0;
  const auto bytes_of = [&](std::int32_t buffer) { return aligned(plan.value_of(BufferId(buffer)).bytes); };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    LaneMarks now = clocks.begin(plan.nodes[i].lane, waits[i]);
    if (!begins[i].empty())
      std::erase_if(pending, [&](const Freed& freed) {
        const auto index = static_cast<std::size_t>(freed.buffer);
        if (!passed(users[index], now)) return false;
        arena.give(memory.offset[index], freed.bytes, users[index]);
        return true;
      });
    // Large buffers first: they leave the fewest holes.
    std::stable_sort(begins[i].begin(), begins[i].end(), [&](auto a, auto b) { return bytes_of(a) > bytes_of(b); });
    for (std::int32_t buffer : begins[i]) {
      LaneMarks before;
      memory.offset[static_cast<std::size_t>(buffer)] =
          arena.take(bytes_of(buffer), lane_communicates(plan.nodes[i].lane) ? nullptr : &now, before);
      if (!passed(before, now)) {
        memory.reuses.push_back({NodeId(static_cast<std::int64_t>(i)), before});
        join(now, before);
      }
      live += bytes_of(buffer);
    }
    memory.live.push_back(live);
    for (std::int32_t buffer : ends[i]) {
      pending.push_back({buffer, bytes_of(buffer)});
      live -= bytes_of(buffer);
    }
    clocks.end(i, plan.nodes[i].lane, now);
  }
  memory.arena = arena.end();
  memory.activations = memory.arena - memory.step;
  return memory;
}

std::vector<LaneMarks> lane_waits(const Plan& plan, const MemoryPlan& memory) {
  std::vector<LaneMarks> waits = lane_waits_by_use(plan);
  for (const MemoryReuse& reuse : memory.reuses) {
    LaneMarks after = reuse.after;
    after[static_cast<std::size_t>(plan.nodes[reuse.node.index()].lane)] = -1;
    join(waits[reuse.node.index()], after);
  }
  return waits;
}

}  // namespace weft
