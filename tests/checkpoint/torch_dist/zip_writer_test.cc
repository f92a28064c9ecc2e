#include "weft/checkpoint/torch_dist/zip_writer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/checkpoint/torch_dist/zip_archive.h"

namespace weft {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ZipWriter, archives_of_pytorch_are_written_again_byte_for_byte) {
  std::size_t items = 0;
  for (const char* const golden : {"hybrid", "gpt", "flat_bf16"}) {
    const TorchDistCheckpoint checkpoint(golden_folder("torch_dist") / golden);
    const auto check = [&](const std::string& name, std::span<const std::byte> item) {
      std::string again;
      ZipWriter zip([&](std::span<const std::byte> bytes) { again += text_of(bytes); });
      const ZipArchive archive(item, name);
      for (const ZipEntry& entry : archive.entries()) zip.add(entry.name, text_of(entry.bytes));
      zip.finish();
      EXPECT_EQ(zip.size(), again.size());
      EXPECT_TRUE(again == text_of(item)) << golden << ": " << name;
      ++items;
    };
    for (const ShardedTensor& tensor : checkpoint.tensors())
      for (const TensorChunk& chunk : tensor.chunks) check(tensor.name, checkpoint.stored_bytes(chunk.place));
    for (const StoredObject& object : checkpoint.objects()) check(object.name, checkpoint.stored_bytes(object.place));
  }
  EXPECT_GT(items, 200u);
}

TEST(ZipWriter, entries_may_come_in_pieces) {
  std::string bytes;
  ZipWriter zip([&](std::span<const std::byte> piece) { bytes += text_of(piece); });
  zip.add("a/empty", "");
  zip.begin("a/pieces", 5);
  zip.write(written::bytes_of("he"));
  zip.write({});
  zip.write(written::bytes_of("llo"));
  zip.end();
  zip.finish();
  const ZipArchive archive(written::bytes_of(bytes), "x");
  EXPECT_EQ(text_of(archive.at("a/pieces").bytes), "hello");
  EXPECT_EQ(archive.at("a/empty").bytes.size(), 0u);
  for (const ZipEntry& entry : archive.entries()) {
    check_checksum(entry, "x", Pages::keep);
    EXPECT_EQ((entry.bytes.data() - archive.entries()[0].bytes.data()) % 64, 0) << entry.name;
  }
}

TEST(ZipWriter, an_entry_of_another_size_is_a_bug) {
  ZipWriter zip([](std::span<const std::byte>) {});
  zip.begin("a/x", 3);
  EXPECT_THROW(zip.write(written::bytes_of("four")), BugError);
  zip.write(written::bytes_of("on"));
  EXPECT_THROW(zip.end(), BugError);
  EXPECT_THROW(zip.begin("a/y", 1), BugError);
  EXPECT_THROW(zip.finish(), BugError);
}

// A file in which long runs of zeros take no space on disk.
class SparseFile {
 public:
  explicit SparseFile(const std::filesystem::path& file)
      : fd_(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  ~SparseFile() {
    EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(size_)), 0);
    ::close(fd_);
  }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;

  void put(std::span<const std::byte> bytes, bool zeros) {
    const auto count = static_cast<ssize_t>(bytes.size());
    if (!zeros) {
      EXPECT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_)), count);
    }
    size_ += bytes.size();
  }

 private:
  int fd_;
  std::uint64_t size_ = 0;
};

// The least size that does not fit 32 bits, and one beyond.
class LargeArchive : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(LargeArchive, entries_of_4_GiB_are_found_where_they_are) {
  const ModelFolder folder;
  const std::uint64_t size = GetParam();
  {
    SparseFile file(folder.file("large.zip"));
    const std::vector<std::byte> zeros(std::size_t{64} << 20);
    bool sparse = false;
    ZipWriter zip([&](std::span<const std::byte> bytes) { file.put(bytes, sparse); });
    zip.add("a/first", "first");
    zip.begin("a/large", size);
    sparse = true;
    for (std::uint64_t left = size; left > 0;) {
      const std::uint64_t step = std::min<std::uint64_t>(left, zeros.size());
      zip.write(std::span(zeros).first(step));
      left -= step;
    }
    sparse = false;
    zip.end();
    zip.add("a/last", "last");
    zip.finish();
  }
  const MappedFile mapping(folder.file("large.zip"));
  const ZipArchive archive(mapping.bytes(), "x");
  ASSERT_EQ(archive.entries().size(), 3u);
  EXPECT_EQ(text_of(archive.at("a/first").bytes), "first");
  EXPECT_EQ(archive.at("a/large").bytes.size(), size);
  EXPECT_EQ(text_of(archive.at("a/last").bytes), "last");
  EXPECT_EQ((archive.at("a/last").bytes.data() - mapping.bytes().data()) % 64, 0);
  check_checksum(archive.at("a/last"), "x", Pages::keep);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LargeArchive, ::testing::Values(0xffffffffull, 0x100000007ull));

}  // namespace
}  // namespace weft
