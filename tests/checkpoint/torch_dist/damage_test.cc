// Checkpoints that are damaged, incomplete, or of another form: each message names the file and what is wrong.
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/torch_dist/counted_memory.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

using namespace written;

// What .metadata with this tensor is refused for, after the file and the tensor.
std::string metadata_complaint(const Tensor& tensor) {
  Checkpoint made;
  made.tensors = {tensor};
  made.lay_out();
  const std::string bytes = made.metadata();
  const std::string message = message_of<UserError>([&] { parse_dcp_metadata(written::bytes_of(bytes), "f"); });
  const std::string begin = "f: tensor 't': ";
  return message.starts_with(begin) ? message.substr(begin.size()) : message;
}

TEST(TorchDistMetadata, irregular_and_empty_chunks_tile_too) {
  EXPECT_EQ(
      metadata_complaint(
          {"t", {4, 4}, {{{0, 0}, {1, 3}}, {{0, 3}, {3, 1}}, {{3, 1}, {1, 3}}, {{1, 0}, {3, 1}}, {{1, 1}, {2, 2}}}}),
      "");
  EXPECT_EQ(metadata_complaint({"t", {5}, {{{0}, {2}}, {{2}, {3}}, {{5}, {0}}}}), "");
  EXPECT_EQ(metadata_complaint({"t", {0, 3}, {{{0, 0}, {0, 3}}}}), "");
  EXPECT_EQ(metadata_complaint({"t", {}, {{{}, {}}}}), "");
  EXPECT_EQ(metadata_complaint({"t", {1, 1, 1, 1, 2}, {{{0, 0, 0, 0, 0}, {1, 1, 1, 1, 2}}}}), "");
}

TEST(TorchDistMetadata, chunks_that_do_not_tile_are_named) {
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {}}), "has the shape [4, 2] and no chunks");
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {{{0, 0}, {3, 2}}}}),
            "its chunks do not tile its shape [4, 2]: of [4, 2] from [0, 0] on some elements are in none");
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {{{0, 0}, {1, 2}}, {{2, 0}, {2, 2}}}}),
            "its chunks do not tile its shape [4, 2]: of [2, 2] from [0, 0] on some elements are in none");
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {{{0, 0}, {3, 2}}, {{2, 0}, {2, 2}}}}),
            "two of its chunks overlap: [3, 2] from [0, 0] on and [2, 2] from [2, 0] on");
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {{{0, 0}, {5, 2}}}}),
            "damaged: a chunk [5, 2] from [0, 0] on does not lie in its shape [4, 2]");
  EXPECT_EQ(metadata_complaint({"t", {4, 2}, {{{0}, {4}}}}),
            "damaged: a chunk [4] from [0] on does not lie in its shape [4, 2]");
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(metadata_complaint({"t", {huge, huge}, {}}),
            "its shape [1099511627776, 1099511627776] is too large to be true");
  EXPECT_EQ(metadata_complaint({"t", {huge, huge, 0}, {}}),
            "its shape [1099511627776, 1099511627776, 0] is too large to be true");
  EXPECT_EQ(metadata_complaint({"t", {1, 1, 1, 1, 1, 1}, {}}), "its size has 6 dims, Weft reads at most 5");
  EXPECT_EQ(metadata_complaint({"t", {-1}, {}}), "its size holds -1, which is not a number of elements");
}

TEST(TorchDistMetadata, types_and_layouts_that_are_not_read_are_named) {
  EXPECT_EQ(metadata_complaint({"t", {}, {{{}, {}}}, "complex128"}),
            "has dtype torch.complex128, which Weft does not read");
  EXPECT_EQ(metadata_complaint({"t", {}, {{{}, {}}}, "float32", "torch.sparse_coo"}),
            "has layout 'torch.sparse_coo'; Weft reads dense tensors");
}

std::string complaint_of(const Checkpoint& made) {
  const std::string bytes = made.metadata();
  return message_of<UserError>([&] { parse_dcp_metadata(written::bytes_of(bytes), "f"); });
}

TEST(TorchDistMetadata, places_that_are_wrong_are_named) {
  Checkpoint made = small_checkpoint();
  made.storage.pop_back();
  EXPECT_EQ(complaint_of(made), "f: object 'common_state/shard_0_1': damaged: storage_data does not say where it lies");
  made = small_checkpoint();
  made.storage.erase(made.storage.begin());
  EXPECT_EQ(complaint_of(made), "f: tensor 'a': damaged: storage_data does not say where one of its chunks lies");
  made = small_checkpoint();
  made.storage[1] = made.storage[0];
  EXPECT_EQ(complaint_of(made), "f: damaged: 'a' has two places for one chunk");
  made = small_checkpoint();
  made.state_dict.push_back(made.state_dict[0]);
  EXPECT_EQ(complaint_of(made), "f: damaged: describes 'a' twice");
  for (const char* path : {"../x", "/etc/passwd", "..", "a/b", ""}) {
    made = small_checkpoint();
    made.storage[0].second = storage_info(path, 0, 10);
    EXPECT_EQ(complaint_of(made),
              fmt::format("f: 'a': its storage file '{}' is not the name of a file in the same folder", path));
  }
  made = small_checkpoint();
  made.storage[0].second = storage_info("x", -1, 10);
  EXPECT_EQ(complaint_of(made), "f: 'a': damaged: its offset in the storage file is -1");
  made = small_checkpoint();
  made.storage[0].second = object(global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                                  fields({{"relative_path", text("x")},
                                          {"offset", integer(0)},
                                          {"length", integer(1)},
                                          {"transform_descriptors", list({text("zstd")})}}));
  EXPECT_EQ(complaint_of(made).find("f: 'a': is stored compressed or transformed"), 0u);
  EXPECT_EQ(message_of<UserError>([] {
              const std::string bytes = pickle(fields({}));
              parse_dcp_metadata(written::bytes_of(bytes), "f");
            }),
            "f: must be the Metadata of a distributed checkpoint, is a dict");
}

// What opening and reading all of the folder complains of, without the folder's name.
std::string read_complaint(const ModelFolder& folder, const std::string& inside = "") {
  std::string message = message_of<UserError>([&] {
    const TorchDistCheckpoint checkpoint(inside.empty() ? folder.path() : folder.file(inside));
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.shape.elements() * bits_of(tensor.type) / 8));
      checkpoint.read(tensor, Box::whole(tensor.shape), bytes);
    }
  });
  const std::string path = folder.path().string();
  for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path))
    message.replace(at, path.size(), "F");
  return message;
}

TEST(TorchDistDamage, a_checkpoint_in_order_is_read) {
  const ModelFolder folder;
  small_checkpoint().write(folder);
  EXPECT_EQ(read_complaint(folder), "");
  const TorchDistCheckpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.iteration(), 7);
  EXPECT_EQ(checkpoint.args(), Json::parse(R"({"num_layers": 2})"));
  EXPECT_EQ(message_of<UserError>([&] { checkpoint.at("c"); }),
            folder.path().string() + ": has no tensor 'c'; there is 'a'");
}

TEST(TorchDistDamage, storage_files_that_are_missing_or_short_are_named) {
  const ModelFolder folder;
  Checkpoint made = small_checkpoint();
  made.write(folder);
  const std::size_t size = made.data.size();
  folder.write("__0_0.distcp", made.data.substr(0, size - 1));
  EXPECT_EQ(
      read_complaint(folder).find(fmt::format("F/__0_0.distcp: truncated, or of another checkpoint: it has {} bytes, "
                                              "and 'common_state/shard_0_1' is ",
                                              size - 1)),
      0u)
      << read_complaint(folder);
  std::filesystem::remove(folder.file("__0_0.distcp"));
  EXPECT_EQ(read_complaint(folder),
            "cannot read F/__0_0.distcp: No such file or directory; it holds 'a', and the checkpoint is incomplete "
            "without it");
  made.storage[1].second = made.storage[0].second;
  made.write(folder);
  EXPECT_EQ(read_complaint(folder),
            "F/__0_0.distcp: damaged .metadata: 'a' and 'a' would lie on the same bytes, at byte 0");
}

TEST(TorchDistDamage, chunks_that_are_wrong_are_named) {
  const ModelFolder folder;
  const auto complaint = [&](const std::string& item) {
    Checkpoint made;
    made.tensors = {{"t", {2, 2}, {{{0, 0}, {2, 2}, item}}}};
    made.lay_out();
    made.write(folder);
    const std::string message = read_complaint(folder);
    const std::string begin = fmt::format("F/__0_0.distcp: tensor 't', {} bytes from byte 0 on: ", item.size());
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  };
  const std::string data(16, '\1');
  EXPECT_EQ(complaint(saved_tensor({"FloatStorage", {2, 2}, {}, data})), "");
  EXPECT_EQ(complaint(saved_tensor({"FloatStorage", {4}, {}, data})), "holds F32 [4], and .metadata says F32 [2, 2]");
  EXPECT_EQ(complaint(saved_tensor({"IntStorage", {2, 2}, {}, data})),
            "holds I32 [2, 2], and .metadata says F32 [2, 2]");
  EXPECT_EQ(complaint(saved_tensor({"ComplexDoubleStorage", {2, 2}, {}, data})),
            "a tensor of torch.ComplexDoubleStorage, a type that Weft does not read");
  for (const TensorItem& beyond :
       {TensorItem{"FloatStorage", {2, 2}, {}, data.substr(1)}, TensorItem{"FloatStorage", {2, 2}, {}, data, 1},
        TensorItem{"FloatStorage", {2, 2}, {std::int64_t{1} << 62, 1}, data},
        TensorItem{"FloatStorage", {2, 2}, {3, 1}, data}}) {
    EXPECT_EQ(complaint(saved_tensor(beyond)),
              fmt::format("damaged: a tensor [2, 2] of F32 reaches beyond its storage, 'archive/data/0' of {} bytes",
                          beyond.data.size()));
  }
  EXPECT_EQ(complaint(zip({{"archive/data.pkl", pickle(none)}})), "must be a tensor, is None");
  EXPECT_EQ(complaint(zip({{"archive/data.pkl", pickle(tensor_pickle({"FloatStorage", {2, 2}, {}, ""}))}})),
            "the archive has no entry 'archive/data/0'");
  EXPECT_EQ(complaint(zip({{"archive/byteorder", "big"}})),
            "its numbers are in byte order 'big'; Weft reads little-endian ones");
  EXPECT_EQ(complaint(zip({{"archive/x", ""}})), "the archive has no entry 'archive/data.pkl'");
  EXPECT_EQ(complaint(zip({{"x", ""}})),
            "is a zip archive, but not one that torch.save wrote: its entries are in no folder");
  EXPECT_EQ(complaint("nonsense"),
            "is not a zip archive, or is truncated: it has 8 bytes, and its end record alone takes 22");
  std::string flipped = saved_tensor({"FloatStorage", {2, 2}, {}, data});
  flipped[flipped.find(data) + 5] = '\3';
  EXPECT_EQ(complaint(flipped).find("damaged: entry 'archive/data/0' has checksum "), 0u) << complaint(flipped);
}

TEST(TorchDistDamage, reading_a_box_takes_no_memory_of_the_chunks_size) {
  const ModelFolder folder;
  Checkpoint made;
  made.tensors = {{"t", {1024, 1024}, {{{0, 0}, {1024, 1024}}}}};
  made.lay_out();
  made.write(folder);
  const TorchDistCheckpoint checkpoint(folder.path());
  std::vector<float> column(1024);
  const CountedMemory memory;
  checkpoint.read(checkpoint.at("t"), Box{{0, 7}, {1024, 1}}, std::as_writable_bytes(std::span(column)));
  EXPECT_LT(memory.peak(), 16384u);
  EXPECT_EQ(column[3], 3 * 1024 + 7);
}

TEST(TorchDistDamage, strides_of_a_saved_tensor_are_followed) {
  // Column by column, from element 1 of the storage on, as clone() keeps a transposed tensor.
  const ModelFolder folder;
  const std::vector<float> storage = {-1, 0, 3, 1, 4, 2, 5};
  const std::string data(reinterpret_cast<const char*>(storage.data()), storage.size() * sizeof(float));
  Checkpoint made;
  made.tensors = {{"t", {2, 3}, {{{0, 0}, {2, 3}, saved_tensor({"FloatStorage", {2, 3}, {1, 2}, data, 1})}}}};
  made.lay_out();
  made.write(folder);
  const TorchDistCheckpoint checkpoint(folder.path());
  std::vector<float> values(6), part(2);
  checkpoint.read(checkpoint.at("t"), Box::whole({2, 3}), std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  checkpoint.read(checkpoint.at("t"), Box{{0, 2}, {2, 1}}, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<float>{2, 5}));
}

TEST(TorchDistDamage, folders_of_other_forms_are_refused_with_what_to_do) {
  const std::string legacy =
      ": is a Megatron checkpoint of the legacy form (--ckpt-format torch: mp_rank_00/model_optim_rng.pt), which Weft "
      "does "
      "not read; convert it with Megatron's --ckpt-convert-format torch_dist --ckpt-convert-save DIR, and read DIR";
  const ModelFolder folder;
  EXPECT_EQ(read_complaint(folder),
            "F: is not a checkpoint of Megatron's: it has neither .metadata nor "
            "latest_checkpointed_iteration.txt");
  EXPECT_EQ(read_complaint(folder, "x"), "F/x: does not exist");
  folder.write("latest_checkpointed_iteration.txt", "12");
  EXPECT_EQ(read_complaint(folder),
            "F/latest_checkpointed_iteration.txt: says iteration 12, and F/iter_0000012 does not exist");
  std::filesystem::create_directories(folder.file("iter_0000012/mp_rank_00"));
  folder.write("iter_0000012/mp_rank_00/model_optim_rng.pt", "");
  EXPECT_EQ(read_complaint(folder), "F/iter_0000012" + legacy);
  EXPECT_EQ(read_complaint(folder, "iter_0000012/mp_rank_00/model_optim_rng.pt"),
            "F/iter_0000012/mp_rank_00/model_optim_rng.pt" + legacy);
  folder.write("latest_checkpointed_iteration.txt", "");
  EXPECT_EQ(read_complaint(folder),
            "F/latest_checkpointed_iteration.txt: must hold the number of an iteration or the word "
            "release, holds ''; name the folder iter_... itself");

  folder.write("metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  EXPECT_EQ(read_complaint(folder),
            "F/metadata.json: the checkpoint has the form 'zarr', and Weft reads torch_dist; load it "
            "in Megatron and save it with --ckpt-format torch_dist");
  folder.write("metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 2})");
  EXPECT_EQ(read_complaint(folder), "F/metadata.json: version 2 of torch_dist; Weft reads version 1");
  folder.write("metadata.json", "[]");
  EXPECT_EQ(read_complaint(folder), "F/metadata.json: does not say which form the checkpoint has (sharded_backend)");
  folder.write("metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  EXPECT_EQ(read_complaint(folder),
            "F: has metadata.json but no .metadata, which says where the tensors are: the checkpoint is incomplete");

  small_checkpoint().write(folder);
  std::filesystem::remove(folder.file("metadata.json"));
  EXPECT_EQ(read_complaint(folder),
            "F: has no metadata.json, which Megatron writes last: the save was not finished, or this "
            "is not a checkpoint of Megatron's; read one that is complete");
  Checkpoint fsdp;
  fsdp.tensors = {{"model.module.decoder.layers.0.mlp.linear_fc1.weight_w", {2}, {{{0}, {2}}}}};
  fsdp.lay_out();
  fsdp.write(folder);
  std::filesystem::remove(folder.file("metadata.json"));
  EXPECT_EQ(
      read_complaint(folder),
      "F: is a Megatron checkpoint of the form fsdp_dtensor, which Weft does not read; load it in Megatron and save it "
      "with --ckpt-format torch_dist, or save the model in Hugging Face's form");
}

TEST(TorchDistDamage, a_damaged_shared_state_is_named) {
  const ModelFolder folder;
  small_checkpoint().write(folder);
  folder.write("common.pt", zip({{"common/data.pkl", pickle(global("os", "system"))}}));
  EXPECT_EQ(read_complaint(folder).find("F/common.pt: the pickle names 'os.system', at byte 2"), 0u);
  folder.write("common.pt", zip({{"common/data.pkl", pickle(none)}}));
  EXPECT_EQ(read_complaint(folder), "F/common.pt: must hold a dict, holds None");
  folder.write("common.pt", zip({{"common/data.pkl", pickle(fields({{"iteration", integer(9)}}))}}));
  EXPECT_EQ(TorchDistCheckpoint(folder.path()).iteration(), 9);
}

}  // namespace
}  // namespace weft
