// Samples of Megatron data sets in Megatron's order (megatron_order.h): one data set, or a blend of several.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/data/documents.h"
#include "weft/data/megatron_order.h"
#include "weft/data/token_source.h"

namespace weft {

// The words of --data-path: "P", "P Q ..." (mixed in proportion to their sizes) or "w P v Q ..." (mixed by weight).
struct DataPath {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // empty: none given
};
DataPath parse_data_path(const std::vector<std::string>& words);

struct MegatronDataOptions {
  // All splits come from the same files, divided by `split` ...
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  // ... or each split has its own files (--train-data-path, --valid-data-path).
  std::array<std::vector<std::string>, 3> split_paths;

  std::int64_t seq_length = 0;
  std::int64_t vocabulary_size = 0;
  std::uint32_t seed = 1234;
  // Samples that the run will read from train, valid, test. A split with none is not opened.
  std::array<std::int64_t, 3> samples{};
};

DataSplits open_megatron_data(const MegatronDataOptions& options);

struct MockDataOptions {
  std::int64_t seq_length = 0;
  std::int64_t vocabulary_size = 0;
  std::int32_t eod = 0;
  std::string split = "969,30,1";
  std::uint32_t seed = 1234;
  std::array<std::int64_t, 3> samples{};
};

// --mock-data: Megatron's mock documents (mock_documents.h) in Megatron's order.
DataSplits open_mock_data(const MockDataOptions& options);

}  // namespace weft
