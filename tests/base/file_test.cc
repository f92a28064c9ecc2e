// Files, read and mapped.
#include "weft/base/file.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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
