// Damaged zips, pickles and .metadata: whatever bytes change, the readers either read or throw a UserError, in time and
// memory that the size of the input bounds. WEFT_MUTATIONS sets how many inputs are tried (1000000 for a long run).
#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/mutations.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/chunk_copy.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

// A pickle makes a value of 16 bytes for every byte, on the stack and in the memo, both of which double when they grow,
// and a container for some.
constexpr MemoryBound memory_bound = {.per_byte = 128, .fixed = 16384};

// One byte each, of those that mean something.
std::vector<std::string> opcodes() {
  std::vector<std::string> tokens;
  for (const char opcode : std::string("N\x88\x89JKM\x8a\x8bG\x8cX\x8d"
                                       "CB\x8e\x96()]}\x8ft\x91\x85\x86\x87"
                                       "ae\x90suc\x93R\x81\x92"
                                       "bQqr\x94hj2"
                                       "01\x95."))
    tokens.emplace_back(1, opcode);
  return tokens;
}

std::string file_in(const std::string& golden, const char* name) {
  return read_file(golden_folder("torch_dist") / golden / "iter_0000007" / name);
}

void read_item(const std::string& bytes) {
  const TorchItem item(written::bytes_of(bytes), "x");
  if (entries_of(item.root()) != nullptr || item.root().is(PickleKind::list)) {
    to_json(item.root(), item.pickle(), "x");
    return;
  }
  const SavedTensor saved = item.tensor(item.root());
  const auto size = written::bytes_of(bytes).size();
  const std::optional<std::int64_t> wanted = weft::bytes_of(saved.shape, saved.type);
  if (!wanted || *wanted > static_cast<std::int64_t>(size)) return;  // repeated rows: .metadata would not ask for them
  std::vector<std::byte> out(static_cast<std::size_t>(*wanted));
  if (!out.empty()) copy_shared(saved, Box::whole(saved.shape), Box::whole(saved.shape), out.data(), Pages::keep);
}

void read_metadata(const std::string& bytes) { parse_dcp_metadata(written::bytes_of(bytes), "x"); }

void read_pickle(const std::string& bytes) {
  const Pickle pickle(written::bytes_of(bytes), "x");
  to_json(pickle.root(), pickle, "x");
}

std::vector<MutatedInput> inputs() {
  const TorchDistCheckpoint hybrid(golden_folder("torch_dist") / "hybrid");
  const TorchDistCheckpoint flat(golden_folder("torch_dist") / "flat_bf16");
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto object = [&](std::string_view name) {
    for (const StoredObject& stored : hybrid.objects())
      if (stored.name.starts_with(name)) return text(hybrid.stored_bytes(stored.place));
    throw BugError("no such object");
  };
  const std::string shared = object("common_state");
  const TorchItem item(written::bytes_of(shared), "common_state");
  const written::Checkpoint small = written::small_checkpoint();
  return {
      {"a small .metadata", small.metadata(), read_metadata},
      {"a small chunk", small.tensors[0].chunks[0].item, read_item},
      {"a small pickle", written::pickle(written::tensor_pickle({"FloatStorage", {2, 3}, {}, "", 0})), read_pickle},
      {"common_state", shared, read_item},
      {"its pickle", text(item.archive().at("archive/data.pkl").bytes), read_pickle},
      {"common.pt", file_in("gpt", "common.pt"), read_item},
      {"an _extra_state", object("decoder.layers.0"), read_item},
      {"a chunk", text(flat.stored_bytes(flat.tensors().front().chunks[0].place)), read_item},
      {"rng_state", object("rng_state"), read_item, true},
      {".metadata of flat_bf16", file_in("flat_bf16", ".metadata"), read_metadata, true},
      {".metadata of hybrid", file_in("hybrid", ".metadata"), read_metadata, true},
  };
}

TEST(TorchDistMutation, no_damage_crashes_hangs_or_takes_memory_beyond_the_size) {
  try_mutations(inputs(), opcodes(), memory_bound, 20000);
}

}  // namespace
}  // namespace weft
