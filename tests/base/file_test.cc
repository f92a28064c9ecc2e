// Files, read, mapped and written.
#include "weft/base/file.h"

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ReadFile, WhatCannotBeRead) {
  const TemporaryFolder folder;
  for (const std::string& name : {std::string("none"), std::string(300, 'x')})
    EXPECT_THAT(message_of<UserError>([&] { read_file(folder.file(name)); }), HasSubstr("cannot read "));
  EXPECT_THAT(message_of<UserError>([&] { read_file(folder.file("")); }), HasSubstr("is a directory, not a file"));
}

TEST(ReadFile, OfRegularFilesAloneDoesNotWaitForAPipe) {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("x"), std::string("a\0b\n", 4));
  EXPECT_EQ(read_regular_file(folder.file("x")), std::string("a\0b\n", 4));
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  for (const std::string& file : {folder.file("pipe"), folder.file(""), std::string("/dev/zero")})
    EXPECT_EQ(message_of<UserError>([&] { read_regular_file(file); }), "cannot read " + file + ": not a regular file");
  std::filesystem::create_symlink("loop", folder.file("loop"));
  EXPECT_EQ(message_of<UserError>([&] { is_there(folder.file("loop")); }),
            "cannot read " + folder.file("loop") + ": Too many levels of symbolic links");
  EXPECT_FALSE(is_there(folder.file("none")));
  EXPECT_TRUE(is_there(folder.file("x")));
}

TEST(NewFile, ReplacesAFileOnceItIsWhole) {
  const TemporaryFolder folder;
  const std::string file = folder.file("x");
  write_file_atomically(file, "before");
  {
    NewFile out(file);
    out.write(std::as_bytes(std::span("half", 4)));
    EXPECT_EQ(read_file(file), "before");
  }
  EXPECT_EQ(read_file(file), "before") << "given up";
  {
    NewFile out(file);
    out.write(std::as_bytes(std::span("half", 4)));
    out.write(std::as_bytes(std::span(" and half", 9)));
    out.commit();
  }
  EXPECT_EQ(read_file(file), "half and half");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(NewFile, FollowsLinksAndWritesToWhatIsNoFile) {
  const TemporaryFolder folder;
  const std::string file = folder.file("x"), link = folder.file("link"), pipe = folder.file("pipe");
  write_file_atomically(file, "before");
  std::filesystem::create_symlink("x", link);
  write_file_atomically(link, "after");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(file), "after");

  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_file_atomically(pipe, "through");
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof(got)), 7);
  ::close(reader);
  EXPECT_EQ(std::string(got), "through");
  ASSERT_TRUE(std::filesystem::is_fifo(pipe));  // or the next would replace a device
  EXPECT_THAT(message_of<RunError>([] { write_file_atomically("/dev/full", "x"); }),
              HasSubstr("cannot write /dev/full: write: No space left on device"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_EQ(folder.entries(), 3u);
}

// Files may have `bytes` bytes as long as this lives. Works for root, too.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(NewFile, FailuresLeaveWhatWasThere) {
  const TemporaryFolder folder;
  const std::string file = folder.file("x"), in_file = file + "/y", taken = folder.file("taken");
  write_file_atomically(file, "before");
  std::filesystem::create_directory(taken);
  const auto message = [](const std::string& path) {
    return message_of<RunError>([&] { write_file_atomically(path, std::string(5000, 'x')); });
  };
  {
    const FileSizeLimit limit(1000);
    EXPECT_EQ(message(file), "cannot write " + file + ": write: File too large");
  }
  EXPECT_EQ(message(in_file), "cannot write " + in_file + ": open: Not a directory");
  EXPECT_EQ(message(taken), "cannot write " + taken + ": rename: Is a directory");
  EXPECT_EQ(read_file(file), "before");
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(MappedFile, HoldsTheBytes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("x");
  write_file_atomically(file, "");
  EXPECT_TRUE(MappedFile(file).bytes().empty());
  std::string text(3 << 16, 'a');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  write_file_atomically(file, text);
  const MappedFile mapped(file);
  EXPECT_TRUE(text_of(mapped.bytes()) == text);
  forget_pages(mapped.bytes().subspan(10, 1 << 17));
  EXPECT_TRUE(text_of(mapped.bytes()) == text) << "read again";
}

TEST(MappedFile, WhatCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<UserError>([&] { MappedFile(folder.file("none")); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of<UserError>([&] { MappedFile(folder.file("")); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace weft
