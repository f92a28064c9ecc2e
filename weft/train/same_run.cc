#include "weft/train/same_run.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"
#include "weft/base/json.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/model_description.h"

namespace weft {

namespace {

constexpr std::int64_t most_tokens = 1 << 20, most_samples = 64;

// Of samples at equal distances. Each costs a read from disk.
std::string tokens_checksum(const TokenSource& source) {
  const std::int64_t fitting = std::max<std::int64_t>(1, most_tokens / source.length());
  const std::int64_t count = std::min({source.samples(), most_samples, fitting});
  const std::int64_t step =
      source.samples() == TokenSource::endless ? 1 : source.samples() / std::max<std::int64_t>(count, 1);
  std::string sums;
  for (std::int64_t i = 0; i < count; ++i) {
    const MicroBatch sample = source.sample_batch(i * step, 1);
    sums += checksum_text(checksum_of(std::as_bytes(std::span(sample.tokens))));
    sums += checksum_text(checksum_of(std::as_bytes(std::span(sample.labels))));
  }
  return checksum_text(checksum_of(sums));
}

// Of a file's size and of some of its bytes: all of a small one, blocks at equal distances of a large one.
std::string sample_checksum(const std::filesystem::directory_entry& file) {
  constexpr std::uint64_t block = 4096, blocks = 256;
  const std::uint64_t size = file.file_size();
  const std::uint64_t step = std::max(block, size / blocks / block * block);
  std::ifstream in(file.path(), std::ios::binary);
  std::string bytes(block, '\0'), sums = std::to_string(size);
  for (std::uint64_t at = 0; at < size; at += step) {
    in.seekg(static_cast<std::streamoff>(at));
    in.read(bytes.data(), static_cast<std::streamsize>(std::min(block, size - at)));
    sums += checksum_text(checksum_of(std::string_view(bytes).substr(0, static_cast<std::size_t>(in.gcount()))));
  }
  return fmt::format("{} bytes, {}", size, checksum_text(checksum_of(sums)));
}

void require_same_source(const RankExchange& ranks, const TokenSource* source, const char* what) {
  std::vector<std::string> lines{"none", ""};
  if (source)
    lines = {fmt::format("{} samples of {}", source->samples(), source->identity()), tokens_checksum(*source)};
  if (source && source->samples() == TokenSource::endless) lines[0] = source->identity();
  if (const auto found = first_difference(ranks, std::span(lines).first(1)))
    throw AgreedError(found->rank,
                      fmt::format("{} is {} on rank {} and {} on rank {}: give all ranks the same files", what,
                                  found->on_rank, found->rank.value, found->on_other, found->other.value));
  if (const auto found = first_difference(ranks, lines))
    throw AgreedError(found->rank,
                      fmt::format("{} ({}) has other tokens on rank {} than on rank {}: give all ranks the same files",
                                  what, lines[0], found->rank.value, found->other.value));
}

// "attention.rope.base 10000.0", ...
void append_fields(const Json& json, const std::string& name, std::vector<std::string>& lines) {
  if (!json.is_object()) return lines.push_back(fmt::format("{} {}", name, json.dump()));
  for (const auto& [key, value] : json.items())
    append_fields(value, name.empty() ? key : fmt::format("{}.{}", name, key), lines);
}

}  // namespace

void require_same_model(const RankExchange& ranks, const ModelConfig& config) {
  if (ranks.ranks() == 1) return;
  std::vector<std::string> lines;
  append_fields(to_json(config), "", lines);
  const auto found = first_difference(ranks, lines);
  if (!found) return;
  throw AgreedError(found->rank, fmt::format("the models differ: '{}' on rank {}, '{}' on rank {}: give all ranks the "
                                             "same config.json",
                                             found->on_rank, found->rank.value, found->on_other, found->other.value));
}

void require_same_data(const RankExchange& ranks, const DataSplits& splits) {
  if (ranks.ranks() == 1) return;
  require_same_source(ranks, splits.train.get(), "the training data");
  require_same_source(ranks, splits.valid.get(), "the validation data");
}

void require_same_files(const RankExchange& ranks, const std::filesystem::path& folder) {
  if (ranks.ranks() == 1) return;
  std::vector<std::string> lines;
  const bool described = std::filesystem::exists(folder / manifest_name);  // it has the checksums of all others
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file() && (!described || entry.path().filename() == manifest_name))
      lines.push_back(entry.path().filename().string() + " " + sample_checksum(entry));
  std::sort(lines.begin(), lines.end());
  const auto found = first_difference(ranks, lines);
  if (!found) return;
  throw AgreedError(found->rank,
                    fmt::format("the files of the model differ, first '{}' on rank {} and '{}' on rank {}: give "
                                "all ranks the same files",
                                found->on_rank, found->rank.value, found->on_other, found->other.value));
}

void require_same_weights(Session& session) {
  const RankExchange& ranks = session.ranks();
  if (ranks.ranks() == 1) return;
  const Layout& layout = session.options().layout;
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  const ModelParameters& parameters = session.parameters();
  for (int id = 0; id < Layout::group_count; ++id) {
    const GroupId replicas(id);
    if (!layout.divides(replicas)) continue;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].placement.replicas != replicas) continue;
      Checksum sum;
      parameters.each(TensorId(static_cast<std::int64_t>(i)), Content::weight,
                      [&](const ParameterPart&, const HostTensor& values) { sum.add(values.bytes); });
      lines.push_back(fmt::format("{} {}", tensors[i].name, checksum_text(sum.value())));
    }
    std::vector<RankId> with;
    for (int r = 0; r < layout.ranks(); ++r) with.emplace_back(r);
    for (const RankGroup& group : layout.all_groups(replicas))
      for (const RankId rank : group) with[rank.index()] = group.front();
    if (const auto found = first_difference(ranks, lines, with))
      throw AgreedError(
          found->rank,
          fmt::format("ranks {} and {} have loaded different weights, the first of them {}: give all "
                      "ranks the same model",
                      found->other.value, found->rank.value, found->on_rank.substr(0, found->on_rank.find(' '))));
  }
}

}  // namespace weft
