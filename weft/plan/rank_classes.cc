#include "weft/plan/rank_classes.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

// The peers that a plan's transfers name, by group.
std::map<GroupId, std::vector<std::int32_t>> peers_of(const Plan& plan) {
  std::map<GroupId, std::set<std::int32_t>> found;
  for (const NodeCollective& c : plan.collectives)
    if (c.kind == CollectiveKind::send || c.kind == CollectiveKind::receive) found[c.group].insert(c.peer);
  std::map<GroupId, std::vector<std::int32_t>> peers;
  for (const auto& [group, list] : found) peers[group].assign(list.begin(), list.end());
  return peers;
}

}  // namespace

RankClasses::RankClasses(const RankPlans& ranks) : ranks_(ranks), class_(ranks.plan_of) {
  const std::size_t size = class_.size();
  for (std::size_t id = 0; id < ranks.groups.size(); ++id) {
    std::vector<std::int32_t>& group_of = group_of_.emplace_back(size, -1);
    std::vector<std::int32_t>& position = position_.emplace_back(size, -1);
    for (std::size_t g = 0; g < ranks.groups[id].size(); ++g)
      for (std::size_t place = 0; place < ranks.groups[id][g].size(); ++place) {
        const RankId rank = ranks.groups[id][g][place];
        WEFT_CHECK(rank.valid() && rank.index() < size, "group {} names rank {} of {}", id, rank.value, size);
        WEFT_CHECK(group_of[rank.index()] < 0, "rank {} is in two groups {}", rank.value, id);
        group_of[rank.index()] = static_cast<std::int32_t>(g);
        position[rank.index()] = static_cast<std::int32_t>(place);
      }
  }
  refine();
}

// Splits classes by the classes in their groups and of their peers, until nothing splits any more.
void RankClasses::refine() {
  const std::size_t size = class_.size();
  std::vector<std::map<GroupId, std::vector<std::int32_t>>> peers;
  for (const RankPlans::Entry& entry : ranks_.plans) peers.push_back(peers_of(*entry.plan));
  for (std::size_t known = 0;;) {
    std::vector<std::vector<std::vector<std::int32_t>>> made_of;  // by GroupId, by group
    for (const std::vector<RankGroup>& groups : ranks_.groups) {
      auto& lists = made_of.emplace_back();
      for (const RankGroup& group : groups) {
        std::vector<std::int32_t>& classes = lists.emplace_back();
        for (RankId rank : group) classes.push_back(class_[rank.index()]);
        std::sort(classes.begin(), classes.end());
        classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
      }
    }
    std::map<std::vector<std::int32_t>, std::int32_t> numbers;
    std::vector<std::int32_t> next(size);
    first_.clear();
    sizes_.clear();
    for (std::size_t r = 0; r < size; ++r) {
      const RankId rank(static_cast<std::int64_t>(r));
      std::vector<std::int32_t> key{class_[r]};
      for (std::size_t id = 0; id < group_of_.size(); ++id) {
        key.push_back(-1);
        if (group_of_[id][r] < 0) continue;
        const auto& classes = made_of[id][static_cast<std::size_t>(group_of_[id][r])];
        key.insert(key.end(), classes.begin(), classes.end());
      }
      for (const auto& [group, list] : peers[static_cast<std::size_t>(ranks_.plan_of[r])]) {
        key.push_back(-2);
        if (group_index(group, rank) < 0) continue;
        const RankGroup& members = group_of(group, rank);
        key.push_back(position_[group.index()][r]);
        for (std::int32_t peer : list)
          key.push_back(static_cast<std::size_t>(peer) < members.size()
                            ? class_[members[static_cast<std::size_t>(peer)].index()]
                            : -3);
      }
      const auto [at, is_new] = numbers.try_emplace(std::move(key), static_cast<std::int32_t>(numbers.size()));
      next[r] = at->second;
      if (is_new) {
        first_.push_back(rank);
        sizes_.push_back(0);
      }
      ++sizes_[static_cast<std::size_t>(next[r])];
    }
    class_ = std::move(next);
    if (numbers.size() == known) return;
    known = numbers.size();
  }
}

const RankGroup& RankClasses::group_of(GroupId group, RankId rank) const {
  const std::int32_t index = group_index(group, rank);
  WEFT_CHECK(index >= 0, "rank {} is in no group {}", rank.value, group.value);
  return ranks_.groups[group.index()][static_cast<std::size_t>(index)];
}

std::vector<std::int32_t> RankClasses::classes_in(GroupId id, std::size_t c) const {
  std::vector<std::int32_t> classes;
  for (RankId rank : group(id, c)) classes.push_back(class_of(rank));
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
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
