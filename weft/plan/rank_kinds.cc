#include "weft/plan/rank_kinds.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

RankKinds::RankKinds(const RankPlans& ranks) : ranks_(ranks), kind_(ranks.class_of) {
  const std::size_t size = kind_.size();
  for (const auto& [name, groups] : ranks.groups) {
    std::vector<std::int32_t>& group_of = group_of_[name];
    group_of.assign(size, -1);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (RankId rank : groups[g]) {
        WEFT_CHECK(rank.valid() && rank.index() < size, "group {} names rank {} of {}", name, rank.value, size);
        WEFT_CHECK(group_of[rank.index()] < 0, "rank {} is in two groups {}", rank.value, name);
        group_of[rank.index()] = static_cast<std::int32_t>(g);
      }
    for (std::size_t r = 0; r < size; ++r) WEFT_CHECK(group_of[r] >= 0, "rank {} is in no group {}", r, name);
  }
  // Tells kinds apart by the kinds in their groups until that tells no more of them apart.
  for (std::size_t known = 0;;) {
    std::map<std::string, std::vector<std::vector<std::int32_t>>> made_of;  // by name, by group
    for (const auto& [name, groups] : ranks.groups)
      for (const RankGroup& group : groups) {
        std::vector<std::int32_t>& kinds = made_of[name].emplace_back();
        for (RankId rank : group) kinds.push_back(kind_[rank.index()]);
        std::sort(kinds.begin(), kinds.end());
        kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
      }
    std::map<std::vector<std::int32_t>, std::int32_t> numbers;
    std::vector<std::int32_t> next(size);
    first_.clear();
    for (std::size_t r = 0; r < size; ++r) {
      std::vector<std::int32_t> key{kind_[r]};
      for (const auto& [name, group_of] : group_of_) {
        const auto& kinds = made_of[name][static_cast<std::size_t>(group_of[r])];
        key.push_back(-1);
        key.insert(key.end(), kinds.begin(), kinds.end());
      }
      const auto [at, is_new] = numbers.try_emplace(std::move(key), static_cast<std::int32_t>(numbers.size()));
      next[r] = at->second;
      if (is_new) first_.push_back(RankId(static_cast<std::int64_t>(r)));
    }
    kind_ = std::move(next);
    if (numbers.size() == known) return;
    known = numbers.size();
  }
}

const RankPlans::Class& RankKinds::class_of(std::size_t kind) const {
  return ranks_.classes[static_cast<std::size_t>(class_index(kind))];
}

const RankGroup& RankKinds::group_of(const std::string& name, RankId rank) const {
  return ranks_.groups.at(name)[static_cast<std::size_t>(group_of_.at(name)[rank.index()])];
}

std::vector<std::int32_t> RankKinds::kinds_in(const std::string& name, std::size_t kind) const {
  std::vector<std::int32_t> kinds;
  for (RankId rank : group(name, kind)) kinds.push_back(kind_of(rank));
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

std::string ranks_text(std::span<const RankId> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end].value == ranks[end - 1].value + 1) ++end;
    if (i > 0) text += ", ";
    text +=
        end - i > 2 ? fmt::format("{} to {}", ranks[i].value, ranks[end - 1].value) : fmt::format("{}", ranks[i].value);
    i = end - i > 2 ? end : i + 1;
  }
  return text;
}

}  // namespace weft
