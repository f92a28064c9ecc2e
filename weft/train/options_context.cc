// --cp-comm-type: what context ranks send each other for attention, by layer.
#include <algorithm>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/pattern/pattern.h"
#include "weft/train/options.h"

namespace weft {

namespace {

constexpr std::pair<const char*, ContextTransfer> names[] = {{"p2p", ContextTransfer::p2p},
                                                             {"all_gather", ContextTransfer::all_gather},
                                                             {"a2a", ContextTransfer::a2a},
                                                             {"a2a+p2p", ContextTransfer::a2a_p2p}};

bool has_both(const TrainOptions& options) {
  const std::vector<std::string>& words = options.layout.cp_comm_type;
  return std::find(words.begin(), words.end(), "a2a+p2p") != words.end();
}

}  // namespace

std::vector<ContextTransfer> context_transfers(const TrainOptions& options) {
  std::vector<ContextTransfer> transfers;
  for (const std::string& word : options.layout.cp_comm_type)
    for (const auto& [name, transfer] : names)
      if (word == name) transfers.push_back(transfer);
  return transfers;
}

std::int64_t context_head_ranks(const TrainOptions& options) {
  const std::vector<std::string>& sizes = options.layout.hierarchical_context_parallel_sizes;
  std::int64_t first = 1;
  if (options.layout.context_parallel_size == 1) return 1;
  return has_both(options) && !sizes.empty() && parse_int(sizes[0], first) ? first : 1;
}

std::vector<std::string> find_context_problems(const TrainOptions& options) {
  const std::vector<std::string>& words = options.layout.cp_comm_type;
  for (const std::string& word : words)
    if (std::none_of(std::begin(names), std::end(names), [&](const auto& known) { return word == known.first; }))
      return {fmt::format("--cp-comm-type {}: not one of p2p, all_gather, a2a, a2a+p2p", word)};
  if (const std::int64_t ranks = options.layout.context_parallel_size; ranks > 1 && has_both(options)) {
    const std::vector<std::string>& sizes = options.layout.hierarchical_context_parallel_sizes;
    std::int64_t heads = 0, ring = 0;
    if (sizes.size() != 2 || !parse_int(sizes[0], heads) || !parse_int(sizes[1], ring) || heads < 1 || ring < 1 ||
        heads * ring != ranks)
      return {fmt::format(
          "--hierarchical-context-parallel-sizes {}: with --cp-comm-type a2a+p2p, two numbers whose product is "
          "--context-parallel-size {}: ranks that exchange heads, and ranks that send each other keys",
          join(sizes, " "), ranks)};
  }
  if (words.empty()) return {"--cp-comm-type: needs a value"};
  if (words.size() == 1 || !options.model.hf.empty()) return {};
  try {
    const auto layers = static_cast<std::size_t>(parse_pattern(options.model.pattern).physical_layers);
    if (words.size() != layers)
      return {fmt::format("--cp-comm-type {}: {} values for {} layers; give one, or one for each layer",
                          join(words, " "), words.size(), layers)};
  } catch (const UserError&) {  // reported elsewhere
  }
  return {};
}

}  // namespace weft
