// Damaged zips, pickles and .metadata: whatever bytes change, the readers either read or throw a UserError, in time and
// memory that the size of the input bounds. WEFT_MUTATIONS sets how many inputs are tried (1000000 for a long run).
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/counted_memory.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/base/text.h"
#include "weft/checkpoint/torch_dist/chunk_copy.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

// A pickle makes a value of 16 bytes for every byte, on the stack and in the memo, both of which double when they grow,
// and a container for some.
constexpr std::size_t most_memory_per_byte = 128, fixed_memory = 16384;

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(random_key(seed, "mutations")) {}
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_below(key_, next_++, bound); }

 private:
  std::uint64_t key_, next_ = 0;
};

void mutate_once(std::string& bytes, Draws& draw) {
  const std::size_t at = draw.below(bytes.size());
  const auto overwrite = [&](const std::string& with) {
    bytes.replace(at, std::min(with.size(), bytes.size() - at), with.substr(0, bytes.size() - at));
  };
  const std::uint64_t extremes[] = {
      0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~std::uint64_t{0} >> 1, ~std::uint64_t{0}};
  switch (draw.below(8)) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      overwrite(std::string(1, static_cast<char>(draw.below(256))));
      break;
    case 2:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.below(8)));
      break;
    case 3:
      overwrite(written::little(extremes[draw.below(9)], 1 << draw.below(4)));
      break;
    case 4:
      bytes.erase(at, 1 + draw.below(8));
      break;
    case 5:
      bytes.insert(at, bytes.substr(draw.below(bytes.size()), 1 + draw.below(64)));
      break;
    case 6:
      overwrite(bytes.substr(draw.below(bytes.size()), 1 + draw.below(64)));
      break;
    default: {  // another opcode
      const std::string opcodes(
          "N\x88\x89JKM\x8a\x8bG\x8cX\x8d"
          "CB\x8e\x96()]}\x8ft\x91\x85\x86\x87"
          "ae\x90suc\x93R\x81\x92"
          "bQqr\x94hj2"
          "01\x95.");
      overwrite(opcodes.substr(draw.below(opcodes.size()), 1));
    }
  }
}

std::string file_in(const std::string& golden, const char* name) {
  return read_file(golden_folder("torch_dist") / golden / "iter_0000007" / name);
}

struct Input {
  const char* name;
  std::string bytes;
  std::function<void(const std::string&)> read;
};

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

std::vector<Input> inputs() {
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
      {"rng_state", object("rng_state"), read_item},
      {".metadata of flat_bf16", file_in("flat_bf16", ".metadata"), read_metadata},
      {".metadata of hybrid", file_in("hybrid", ".metadata"), read_metadata},
  };
}

TEST(TorchDistMutation, no_damage_crashes_hangs_or_takes_memory_beyond_the_size) {
  std::int64_t count = 20000;
  if (const char* asked = std::getenv("WEFT_MUTATIONS")) {
    ASSERT_TRUE(parse_int(asked, count)) << asked;
  }
  const std::vector<Input> all = inputs();
  for (const Input& input : all) input.read(input.bytes);  // undamaged ones are read
  std::int64_t refused = 0;
  double slowest = 0, most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Draws draw(static_cast<std::uint64_t>(i));
    // The large ones take as long as all others together; they get a few.
    const std::size_t chosen = draw.below(20) == 0 ? draw.below(all.size()) : draw.below(8);
    const Input& input = all[chosen];
    std::string bytes = input.bytes;
    for (std::size_t m = 1 + draw.below(4); m > 0; --m) mutate_once(bytes, draw);
    const std::size_t size = std::max(bytes.size(), input.bytes.size());
    bytes.shrink_to_fit();  // so that the sanitizer sees where it ends
    const auto begin = std::chrono::steady_clock::now();
    const CountedMemory memory;
    try {
      input.read(bytes);
    } catch (const UserError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find("x: "), 0u) << error.what();
    } catch (const std::exception& error) {
      FAIL() << input.name << ", mutation " << i << ": " << error.what();
    }
    ASSERT_LE(memory.peak(), fixed_memory + most_memory_per_byte * size) << input.name << ", mutation " << i;
    most = std::max(most, static_cast<double>(memory.peak()) / static_cast<double>(size));
    slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_LT(slowest, 10.0);
  EXPECT_GT(refused, count / 4);  // the mutations do damage something
  RecordProperty("refused", static_cast<int>(refused));
  std::printf("%lld mutations, %lld refused, slowest %.1f ms, at most %.1f bytes of memory per byte of input\n",
              static_cast<long long>(count), static_cast<long long>(refused), slowest * 1e3, most);
}

}  // namespace
}  // namespace weft
