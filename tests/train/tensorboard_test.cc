#include "weft/train/tensorboard.h"

#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

TEST(Tensorboard, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Tensorboard, VersionRecord) {
  EXPECT_EQ(hex(tensorboard_version_record(1.0)),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
}

TEST(Tensorboard, ScalarRecord) {
  EXPECT_EQ(hex(tensorboard_scalar_record(2.0, 100, "lm loss", 2.5f)),
            "1d00000000000000602fdf2309000000000000004010642a100a0e0a076c6d206c6f73731500002040b3661880");
}

TEST(Tensorboard, RestartRecord) {
  // Event.wall_time 1.0, Event.step 300, Event.session_log {status START}
  EXPECT_EQ(hex(tensorboard_restart_record(1.0, 300).substr(12, 16)), "09000000000000f03f10ac023a020801");
  EXPECT_EQ(tensorboard_restart_record(1.0, 300).size(), 12u + 16 + 4);
}

TEST(Tensorboard, LongTagsAndStepsNeedTwoByteLengths) {
  const std::string tag(200, 't');
  const std::string record = tensorboard_scalar_record(1.0, 300, tag, 0.0f);
  // wall time 9, step 1 + 2, summary 1 + 2, value 1 + 2, tag 1 + 2 + 200, number 5
  EXPECT_EQ(record.size(), 12u + 9 + 3 + 3 + 3 + 203 + 5 + 4);
  EXPECT_EQ(hex(record.substr(12 + 9, 3)), "10ac02");
  EXPECT_EQ(hex(record.substr(12 + 12, 3)), "2ad301");        // 211 bytes of summary
  EXPECT_EQ(hex(record.substr(12 + 15, 6)), "0ad0010ac801");  // 208 of value, 200 of tag
  EXPECT_EQ(hex(record.substr(record.size() - 9, 5)), "1500000000") << "a value of zero is written";
}

// The data of each record of a file.
std::vector<std::string> records_in(const std::filesystem::path& file) {
  const std::string bytes = read_file(file);
  std::vector<std::string> records;
  for (std::size_t at = 0; at + 16 <= bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    if (at + 16 + length > bytes.size()) break;
    records.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  return records;
}

// Points after the iteration it goes on from, which a killed run may have written, are forgotten.
TEST(Tensorboard, ARunThatGoesOnSaysWhere) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("weft-tensorboard-on-{}", ::getpid());
  {
    TensorboardWriter first(folder), writer(folder, 5);
    const std::vector<std::string> began = records_in(first.file()), records = records_in(writer.file());
    EXPECT_EQ(began.size(), 1u);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].substr(9), "\x1a\rbrain.Event:2");
    EXPECT_EQ(hex(records[1].substr(9)), "10063a020801") << "step 6, status START";
  }
  std::filesystem::remove_all(folder);
}

TEST(Tensorboard, FilesCanBeReadBack) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("weft-tensorboard-{}", ::getpid()) / "run";
  {
    TensorboardWriter writer(folder), other(folder);
    EXPECT_NE(writer.file(), other.file());
    EXPECT_EQ(writer.file().filename().string().find("events.out.tfevents."), 0u);
    writer.scalar("lm loss", 1, 3.25);
    writer.scalar("lm loss", 0, 3.25);
    const std::vector<std::string> records = records_in(writer.file());
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].substr(9), "\x1a\rbrain.Event:2");
    EXPECT_EQ(hex(records[1].substr(9)), "10012a100a0e0a076c6d206c6f73731500005040");
    EXPECT_EQ(hex(records[2].substr(9)), "2a100a0e0a076c6d206c6f73731500005040");
    double wall_time = 0;
    std::memcpy(&wall_time, records[1].data() + 1, 8);
    EXPECT_GT(wall_time, 1.7e9);
  }
  std::filesystem::remove_all(folder.parent_path());
}

TEST(Tensorboard, ExplainsAFolderThatCannotBe) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("weft-tensorboard-file-{}", ::getpid());
  write_file_atomically(file, "x");
  try {
    TensorboardWriter writer(file / "run");
    FAIL() << "must be refused";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("(--tensorboard-dir)"), std::string::npos) << error.what();
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace weft
