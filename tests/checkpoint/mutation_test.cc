// Damaged manifests and safetensors files (mutations.h).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/checkpoint/filled_box.h"
#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/mutations.h"
#include "tests/checkpoint/sealed.h"
#include "weft/base/error.h"
#include "weft/checkpoint/json_strict.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/safetensors_directory.h"

namespace weft {
namespace {

using AnyJson = nlohmann::json;

// A JSON value takes 16 bytes, an empty object in an array 80 for the two characters that it has in the text; containers
// double when they grow.
constexpr MemoryBound memory_bound = {.per_byte = 100, .fixed = 65536};

const std::vector<std::string> json_tokens = {"{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ":",
                                              "\"",
                                              "\\",
                                              "null",
                                              "true",
                                              "-1",
                                              "1e308",
                                              "1e-400",
                                              "0.5",
                                              "[]",
                                              "{}",
                                              "[[[",
                                              "{\"",
                                              "\\u0000",
                                              "\\ud800",
                                              "\xff",
                                              "9223372036854775807",
                                              "18446744073709551616",
                                              "\"shape\":",
                                              "\"F64\""};

// The values of a JSON text, in the order of the text.
void collect(AnyJson& json, std::vector<AnyJson*>& all) {
  all.push_back(&json);
  if (json.is_structured())
    for (AnyJson& value : json) collect(value, all);
}

AnyJson other_value(Draws& draw, const std::vector<AnyJson*>& all) {
  static const std::vector<AnyJson> odd = {nullptr,
                                           true,
                                           -1,
                                           0,
                                           1,
                                           2,
                                           7,
                                           1.5,
                                           1e300,
                                           std::int64_t{1} << 40,
                                           std::int64_t{1} << 62,
                                           ~std::uint64_t{0},
                                           "",
                                           "..",
                                           "F64",
                                           "BF16",
                                           "I8",
                                           "rank-00001.safetensors",
                                           "../rank-00000.safetensors",
                                           "0123456789abcdef",
                                           AnyJson::array(),
                                           AnyJson::object(),
                                           AnyJson::array({4, 3}),
                                           AnyJson::array({2, 2, 2, 2, 2, 2})};
  const std::size_t choice = draw.below(odd.size() + 8);
  return choice < odd.size() ? odd[choice] : *all[draw.below(all.size())];
}

// Values become others, or are left out, or occur twice; the checksum is that of the result.
void mutate_values(std::string& text, Draws& draw) {
  AnyJson json = AnyJson::parse(text);
  for (std::size_t m = 1 + draw.below(3); m > 0; --m) {
    std::vector<AnyJson*> all;
    collect(json, all);
    AnyJson& value = *all[1 + draw.below(all.size() - 1)];
    const std::size_t kind = draw.below(4);
    if (kind == 0 && value.is_structured() && !value.empty()) {
      value.erase(std::next(value.begin(), static_cast<std::ptrdiff_t>(draw.below(value.size()))));
    } else if (kind == 1 && value.is_array() && !value.empty()) {
      value.push_back(AnyJson(value[draw.below(value.size())]));
    } else if (kind == 2 && value.is_number_integer()) {
      value = static_cast<std::int64_t>(value.get<std::uint64_t>() + draw.below(5) - 2);
    } else {
      value = AnyJson(other_value(draw, all));
    }
    if (json.empty()) break;
  }
  text = sealed(json);
}

BoxToWrite box_to_write(const char* name, DType dtype, const Shape& shape, const Box& box) {
  return filled_box(name, dtype, shape, box, std::byte{0x3c});
}

// A checkpoint of three ranks: boxes in two dims, a scalar, a tensor without elements.
class Saved {
 public:
  Saved() {
    const CheckpointInProgress checkpoint(folder_.path(), 1);
    checkpoint.begin();
    const Shape matrix{4, 6}, cube{2, 3, 2};
    checkpoint.commit(
        {checkpoint.write(RankId(0), {box_to_write("weight/m", DType::f32, matrix, {{0, 0}, {4, 3}}),
                                      box_to_write("weight/c", DType::bf16, cube, {{0, 0, 0}, {2, 3, 1}}),
                                      box_to_write("weight/s", DType::f64, {}, {})}),
         checkpoint.write(RankId(1), {box_to_write("weight/m", DType::f32, matrix, {{0, 3}, {2, 3}}),
                                      box_to_write("weight/c", DType::bf16, cube, {{0, 0, 1}, {2, 3, 1}})}),
         checkpoint.write(RankId(2), {box_to_write("weight/m", DType::f32, matrix, {{2, 3}, {2, 3}})})},
        R"({"pattern": "[*-]", "arguments": {"lr": "1"}})");
  }

  std::filesystem::path path() const { return folder_.file("iter_0000001"); }
  std::string bytes(const char* file) const { return read_file(path() / file); }
  // What reading the whole checkpoint does with this file in place of its own.
  void read_with(const char* file, const std::string& bytes) const {
    const std::string own = this->bytes(file);
    folder_.write(std::string("iter_0000001/") + file, bytes);
    try {
      const RunCheckpoint checkpoint(path());
      checkpoint.verify();
      for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
        ParameterPart part;
        part.shape = tensor.shape;
        part.box = Box::whole(tensor.shape);
        HostTensor values(DType::f32, tensor.shape.elements());  // all of them are in the files
        checkpoint.read(name, part, values);
      }
    } catch (const UserError& error) {
      folder_.write(std::string("iter_0000001/") + file, own);
      fail(error);
    }
    folder_.write(std::string("iter_0000001/") + file, own);
  }
  const ModelFolder& folder() const { return folder_; }
  // The same with x for the folder's name, which the message must hold.
  [[noreturn]] void fail(const UserError& error) const {
    const std::string message = error.what();
    if (message.find(folder_.path().string()) == std::string::npos) throw BugError("names no file: " + message);
    throw UserError("x: " + message);
  }

 private:
  ModelFolder folder_;
};

// A file that no disk has to keep up with.
class FileInMemory {
 public:
  FileInMemory() : fd_(::memfd_create("x", MFD_CLOEXEC)) {}
  ~FileInMemory() { ::close(fd_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }
  void write(const std::string& bytes) const {
    ASSERT_EQ(::ftruncate(fd_, 0), 0);
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }

 private:
  int fd_;
};

TEST(Mutation, damaged_manifests_are_read_or_refused_in_bounded_time_and_memory) {
  const Saved saved;
  const std::string manifest = saved.bytes(manifest_name);
  const auto parse = [](const std::string& bytes) { parse_manifest(bytes, "x"); };
  const auto parse_sealed = [](const std::string& bytes) {
    const AnyJson json = parse_strict_json(bytes, "x");
    parse_manifest(json.is_object() ? sealed(json) : bytes, "x");
  };
  const auto open = [&](const std::string& bytes) { saved.read_with(manifest_name, bytes); };
  try_mutations({{"its bytes", manifest, parse},
                 {"its bytes, with a right checksum", manifest, parse_sealed},
                 {"its values", manifest, parse, false, mutate_values},
                 {"its values, more often", manifest, parse, false, mutate_values},
                 {"its values, and the checkpoint opened", manifest, open, true, mutate_values},
                 {"its bytes, and the checkpoint opened", manifest, open, true}},
                json_tokens, memory_bound, 10000);
}

TEST(Mutation, damaged_safetensors_are_read_or_refused_in_bounded_time_and_memory) {
  const Saved saved;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"I16","shape":[2,2],"data_offsets":[3,11]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
      R"("c":{"dtype":"F4","shape":[2,0],"data_offsets":[11,11]}})";
  const std::uint64_t length = header.size();
  const std::string file = std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(11, '\1');
  const ModelFolder& folder = saved.folder();
  const auto parse = [](const std::string& bytes) {
    check_safetensors_tiling(parse_safetensors_header(bytes, "x"), 11, "x");
  };
  const FileInMemory x;
  const auto read = [&](const std::string& bytes) {
    x.write(bytes);
    try {
      const SafetensorsFile opened(x.path());
      for (const TensorEntry& entry : opened.entries()) {
        const DType target = is_float(entry.type) ? DType::f64 : DType::i64;
        if (!is_convertible(entry.type, target)) continue;
        std::vector<std::int64_t> values(static_cast<std::size_t>(entry.shape.elements()));
        read_as(entry, target, values.data());
      }
    } catch (const UserError& error) {
      if (std::string(error.what()).find(x.path()) == std::string::npos) throw BugError(error.what());
      throw UserError("x: {}", error.what());
    }
  };
  std::filesystem::create_directory(folder.file("shards"));
  folder.write("shards/model-1.safetensors", file);
  const auto index = [&](const std::string& bytes) {
    folder.write("shards/model.safetensors.index.json", bytes);
    try {
      SafetensorsDirectory{folder.file("shards")};
    } catch (const UserError& error) {
      saved.fail(error);
    }
  };
  const auto rank = [&](const std::string& bytes) { saved.read_with("rank-00000.safetensors", bytes); };
  const std::string names = R"({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors",)"
                            R"( "c": "model-1.safetensors"}, "metadata": {"total_size": 11}})";
  try_mutations({{"a header", header, parse},
                 {"a header, more often", header, parse},
                 {"a file", file, read},
                 {"a rank's file", saved.bytes("rank-00000.safetensors"), rank, true},
                 {"an index", names, index, true}},
                json_tokens, memory_bound, 10000);
}

}  // namespace
}  // namespace weft
